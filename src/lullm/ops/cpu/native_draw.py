"""The native ops that choose tokens, as functions on tensors; `csrc/draw.cpp` says how."""

import torch
from torch import Tensor

from lullm.ops import in_place
from lullm.ops.cpu.recording import call, new_result
from lullm.ops.draw_table import DrawTable


def forbid_(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        return in_place.forbid_(logits, rows, allowed)
    sizes = len(rows), logits.stride(0), logits.shape[1], allowed.shape[1]
    call("lullm_forbid", logits, rows, allowed, *sizes)


def _parts(table: DrawTable) -> tuple[Tensor, ...]:
    """In the order of the native functions."""
    return table.temperatures, table.top_k, table.top_p, table.min_p_floors, table.keys


def draw_tokens(logits: Tensor, table: DrawTable, writes_logits: bool = False) -> Tensor:
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    num_rows, vocab_size = logits.shape
    tokens = new_result((num_rows,), torch.int64)
    sizes = num_rows, logits.stride(0), vocab_size
    call("lullm_draw_tokens", logits, *_parts(table), tokens, *sizes, writes_logits)
    return tokens


def draw_allowed(logits: Tensor, rows: Tensor, allowed: Tensor, table: DrawTable) -> Tensor:
    assert logits.dtype == torch.float32 and logits.stride(1) == 1 and allowed.is_contiguous()
    tokens = new_result((len(rows),), torch.int64)
    sizes = len(rows), logits.stride(0), logits.shape[1], allowed.shape[1]
    call("lullm_draw_allowed", logits, rows, allowed, *_parts(table), tokens, *sizes)
    return tokens
