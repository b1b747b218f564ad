"""DeviceLayout: the step as the attention kernels read it, in tensors of the device. Loads no Triton.

Everything that changes from step to step stands in tensors, so that a launch recorded in a graph stays right when
their contents change. What the host knows besides are upper bounds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_NUM_KV_HEADS = 128


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """S spans with T tokens in all, in any order; those of one token (decodes) have a kernel of their own.

    A row that only fills up a graph's batch is a span of one token with context length 0; it gives zeros.

    Args:
        query_starts: `[S + 1]` int32, the first row of each span, then T.
        context_lens: `[S]` int32, tokens in the cache once this step's are written.
        block_tables: `[S, M]` int32, rows in one piece. Entries beyond the context, or all left of the window, may be
            anything: they are never followed.
        slot_mapping: `[T]` int64; -1: the row is written nowhere.
        semaphores: `new_semaphores(S, ...)` or more of them. All are 0 between two launches, which is what the kernels
            leave behind, so one tensor serves all layers and steps of a stream.
        block_size: tokens per block.
        max_query_len: no span is longer; 1 says that all are decodes.
        max_context_len: no context is longer.
        num_prefill_tokens, num_prefill_spans: of the spans of more than one token; they say how much work there is, and
            nothing that is computed depends on them.
        window: the tokens that a row sees at most, its own included; None: all up to its own.
    """

    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor
    slot_mapping: Tensor
    semaphores: Tensor
    block_size: int
    max_query_len: int
    max_context_len: int
    num_prefill_tokens: int = 0
    num_prefill_spans: int = 0
    window: int | None = None

    @property
    def num_spans(self) -> int:
        return self.context_lens.shape[0]


def new_semaphores(num_spans: int, device: torch.device) -> Tensor:
    """`[num_spans * MAX_NUM_KV_HEADS]` int32 zeros: one for each head of each span that is split."""
    return torch.zeros(num_spans * MAX_NUM_KV_HEADS, dtype=torch.int32, device=device)
