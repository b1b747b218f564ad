"""HostDecode: decode steps on a CPU, recorded by batch size (`DecodeGraphs`).

Batches are built in buffers of their own, with `runs_ahead` in two that take turns. When they are computed, their
integers come to places here that are the same for every batch of a size, so that a recording reads the batch of now.
Copying them costs 5 microseconds. (`Staging` is the same for a GPU.)
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lullm.arena.workspace import Workspace
from lullm.config.model import ModelConfig
from lullm.device.device import Device
from lullm.kv.cache_group import cache_layout
from lullm.models.protocol import Model
from lullm.nn.context import StepContext
from lullm.ops.attention_layout import AttentionLayout
from lullm.ops.cpu.native_attention import NativeLayout
from lullm.ops.draw_table import DrawTable
from lullm.ops.layer_cache import LayerCache
from lullm.ops.table import Ops
from lullm.step.batch import Batch
from lullm.step.graphs import DecodeGraphs, DecodeOutput
from lullm.units import MIB, cdiv


def workspace_bytes(config: ModelConfig, max_num_seqs: int) -> int:
    """More than the results of the largest step that are there at the same time; what is not touched takes no memory.

    The logits in two types, and a dozen rows as wide as the widest of a layer in float32.
    """
    heads = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    widest = max(config.hidden_size, config.family.widest_row, heads)
    return MIB + max_num_seqs * (8 * config.vocab_size + 12 * 4 * widest)


class HostDecode:
    """Batches of up to `max_num_seqs` decodes of one model.

    Args:
        ops: native ones.
        max_num_seqs, max_model_len, block_size, window: see `BatchBuilder`.
        workspace: for the results of all recordings.

    Attributes:
        graphs: the recordings.
    """

    def __init__(
        self,
        device: Device,
        ops: Ops,
        model: Model,
        kv_caches: list[LayerCache],
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        window: int | None,
        workspace: Workspace,
    ):
        self._ops = ops
        self._model = model
        self._kv_caches = kv_caches
        self._block_size = block_size
        self._window = window
        self._token_ids = np.zeros(max_num_seqs, np.int64)
        self._positions = np.zeros(max_num_seqs, np.int64)
        self._slot_mapping = np.zeros(max_num_seqs, np.int64)
        self._context_lens = np.zeros(max_num_seqs, np.int64)
        self._query_starts = np.arange(max_num_seqs + 1, dtype=np.int64)
        self._block_tables = np.zeros((max_num_seqs, cdiv(max_model_len, block_size)), np.int64)
        kinds = (np.float32, np.int32, np.float64, np.float32, np.float64)  # the columns of a `DrawTable`
        self._draw_columns = [np.ones(max_num_seqs, kind) for kind in kinds]
        self.graphs = DecodeGraphs(device, self._compute, workspace)

    def takes(self, batch: Batch) -> bool:
        """Whether `run` does this batch: decodes only, of a model that can be recorded."""
        return self.graphs.refusal is None and batch.is_decode

    def run(self, batch: Batch, token_ids: Tensor, draw_table: DrawTable | None) -> DecodeOutput:
        """Compute a batch that it takes. What comes out is valid until the next one.

        Args:
            token_ids: [S] int64, the batch's with pending ones filled in.
            draw_table: what tokens are drawn by; None: greedily.
        """
        layout = batch.layout
        size, width = layout.block_tables.shape
        self._token_ids[:size] = token_ids.numpy()
        self._positions[:size] = batch.positions.numpy()
        self._slot_mapping[:size] = layout.slot_mapping.numpy()
        self._context_lens[:size] = layout.context_lens
        self._block_tables[:size, :width] = layout.block_tables.numpy()
        if draw_table is None:
            self._draw_columns[0][:size] = 0.0
        else:
            t = draw_table
            columns = (t.temperatures, t.top_k, t.top_p, t.min_p_floors, t.uniforms)
            for place, column in zip(self._draw_columns, columns, strict=True):
                place[:size] = column.numpy()
        return self.graphs.run(size)

    def _compute(self, size: int) -> DecodeOutput:
        """What stands in the places of `size` sequences."""
        token_ids, positions, slot_mapping, context_lens, query_starts, block_tables = (
            torch.from_numpy(numbers)
            for numbers in (
                self._token_ids[:size],
                self._positions[:size],
                self._slot_mapping[:size],
                self._context_lens[:size],
                self._query_starts[: size + 1],
                self._block_tables[:size],
            )
        )
        # The lists are for attention that is not native, which is computed once and not recorded.
        layout = AttentionLayout(
            [1] * size, self._context_lens[:size].tolist(), block_tables, slot_mapping, self._block_size, self._window
        )
        windows = [group.window for group in cache_layout(self._model.config.layer_kinds).groups]
        attention = [
            NativeLayout(replace(layout, window=window), slot_mapping, query_starts, context_lens) for window in windows
        ]
        hidden = self._model(token_ids, StepContext(positions, attention, self._kv_caches, self._ops))
        logits = self._model.compute_logits(hidden, self._ops)
        draw_table = DrawTable(*(torch.from_numpy(column[:size]) for column in self._draw_columns))
        return DecodeOutput(logits, self._ops.draw_tokens(logits, draw_table, False))
