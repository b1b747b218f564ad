"""From a plan to tensors: all spans of a step become one ragged batch, through buffers that persist."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lullm.ops.attention_layout import AttentionLayout
from lullm.types.draw import Draw
from lullm.types.step import Span, StepPlan
from lullm.units import cdiv


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input, T tokens of S spans, for a model with G KV cache groups.

    `layouts` are by group: they have the same spans, and block tables and slots of their own. `drawn_rows` are the
    distinct rows whose logits are drawn from, and `draw_index` says which of them each draw uses (None: one draw per
    row, in order). `prompt_spans` are the spans that want prompt log-probabilities, with their first row.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slot_mapping: torch.Tensor  # [G, T] int64
    layouts: Sequence[AttentionLayout]
    drawn_rows: torch.Tensor  # [R] int64
    draws: list[Draw]
    draw_index: torch.Tensor | None  # [len(draws)] int64
    prompt_spans: list[tuple[int, Span]]

    @property
    def layout(self) -> AttentionLayout:
        """Of the first group."""
        return self.layouts[0]

    @property
    def is_decode(self) -> bool:
        """One token and one draw per span, and nothing else."""
        num_spans = self.layout.num_spans
        has_one_each = self.layout.num_tokens == num_spans and len(self.draws) == num_spans
        return has_one_each and self.draw_index is None and not self.prompt_spans


class BatchBuilder:
    """Builds batches into staging buffers of the largest size, so that a step allocates next to nothing.

    A batch is valid until the next one is built. Shapes are bounded by the scheduler's limits: at most
    `max_num_seqs` spans, `max_num_batched_tokens` tokens, `max_model_len` positions.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_size: int,
        windows: Sequence[int | None] = (None,),
    ):
        self._block_size = block_size
        self._windows = windows
        self._token_ids = np.zeros(max_num_batched_tokens, np.int64)
        self._positions = np.zeros(max_num_batched_tokens, np.int64)
        self._slot_mapping = np.zeros((len(windows), max_num_batched_tokens), np.int64)
        self._rows = np.arange(max_num_batched_tokens, dtype=np.int64)
        max_blocks = cdiv(max_model_len, block_size)
        self._block_tables = [np.zeros((max_num_seqs, max_blocks), np.int64) for _ in windows]

    def build(self, plan: StepPlan) -> Batch:
        """The batch of a plan with at least one span. The draws of a span stand in the order of their rows."""
        query_lens: list[int] = []
        context_lens: list[int] = []
        drawn_rows: list[int] = []
        draws: list[Draw] = []
        draw_index: list[int] = []
        prompt_spans: list[tuple[int, Span]] = []
        max_blocks = first_row = 0
        for place, span in enumerate(plan.spans):
            if span.prompt_targets:
                prompt_spans.append((first_row, span))
            end = span.end
            query_lens.append(end - span.start)
            context_lens.append(end)
            num_blocks = cdiv(end, self._block_size)
            for table, block_ids in zip(self._block_tables, span.block_ids, strict=True):
                table[place, :num_blocks] = np.frombuffer(block_ids, np.int32, num_blocks)
            max_blocks = max(max_blocks, num_blocks)
            for draw in span.draws:
                row = first_row + draw.row
                if not drawn_rows or drawn_rows[-1] != row:
                    drawn_rows.append(row)
                draw_index.append(len(drawn_rows) - 1)
                draws.append(draw)
            first_row += end - span.start
        token_ids = np.frombuffer(b"".join([span.token_ids for span in plan.spans]), np.int32)
        num_tokens, num_spans = len(token_ids), len(query_lens)
        self._token_ids[:num_tokens] = token_ids
        self._place(query_lens, context_lens, num_tokens)
        slot_mapping = torch.from_numpy(self._slot_mapping[:, :num_tokens])
        return Batch(
            token_ids=torch.from_numpy(self._token_ids[:num_tokens]),
            positions=torch.from_numpy(self._positions[:num_tokens]),
            slot_mapping=slot_mapping,
            layouts=[
                AttentionLayout(
                    query_lens=query_lens,
                    context_lens=context_lens,
                    block_tables=torch.from_numpy(table[:num_spans, :max_blocks]),
                    slot_mapping=slots,
                    block_size=self._block_size,
                    window=window,
                )
                for table, slots, window in zip(self._block_tables, slot_mapping, self._windows, strict=True)
            ],
            drawn_rows=torch.tensor(drawn_rows, dtype=torch.int64),
            draws=draws,
            draw_index=None if len(draws) == len(drawn_rows) else torch.tensor(draw_index),
            prompt_spans=prompt_spans,
        )

    def _place(self, query_lens: list[int], context_lens: list[int], num_tokens: int) -> None:
        """Fill positions and slots of all tokens at once: position = context_len - rows left in the span."""
        positions = self._positions[:num_tokens]
        if num_tokens == len(query_lens):  # one each; every call of numpy's costs 3 us behind a step's cold caches
            np.subtract(context_lens, 1, out=positions)
            span_of_token = self._rows[:num_tokens]
        else:
            span_ends = np.cumsum(query_lens)
            positions[:] = self._rows[:num_tokens]
            positions += np.repeat(np.array(context_lens) - span_ends, query_lens)
            span_of_token = np.repeat(self._rows[: len(query_lens)], query_lens)
        block, offset = np.divmod(positions, self._block_size)
        for table, slots in zip(self._block_tables, self._slot_mapping, strict=True):
            slots[:num_tokens] = table[span_of_token, block] * self._block_size + offset
