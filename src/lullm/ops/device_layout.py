"""DeviceLayout: an `AttentionLayout` in tensors of the device, the argument of `Ops.prepare_attention`.

All data that changes from step to step is in tensors, so that a recorded launch stays valid when their contents change.
The numbers on the host are upper bounds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lullm.ops.attention_layout import AttentionLayout


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """S spans with T tokens in all, in any order.

    A padding row of a graph's batch is a span of one token with context length 0; its result is zeros. A CPU has no
    such rows. Integers are of `Ops.index_dtype`, except the slots.

    Args:
        query_starts: `[S + 1]`, the first row of each span, then T.
        context_lens: `[S]`, tokens in the cache, this step's included.
        block_tables: `[S, M]`, contiguous rows. Entries beyond the context, or left of the window, may hold anything:
            they are never read.
        slot_mapping: `[T]` int64; -1: the row is not written.
        semaphores: at least `[S * Ops.semaphores_per_span]` int32. All are 0 between two launches, because the kernels
            reset them. So all layers and steps of a stream share one tensor.
        block_size: tokens per block.
        max_query_len: upper bound of a span's tokens; 1: all are decodes.
        max_context_len: upper bound of a context.
        num_prefill_tokens, num_prefill_spans: of the spans of more than one token. They size the launches; results do
            not depend on them.
        window: the most tokens that a row sees, its own included; None: all up to its own.
        is_chunked: a row sees those from the last multiple of `window` on.
        is_state: the blocks hold recurrent states (`ops.state.layout`), not keys and values.
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
    is_chunked: bool = False
    is_state: bool = False

    @staticmethod
    def of(
        layout: AttentionLayout,
        device: torch.device | None = None,
        index_dtype: torch.dtype = torch.int64,
        semaphores_per_span: int = 0,
    ) -> "DeviceLayout":
        """The layout on a device; None: on that of the layout's own tensors. Blocking."""
        device = layout.slot_mapping.device if device is None else device
        prefills = [query_len for query_len in layout.query_lens if query_len > 1]
        starts = torch.tensor([0, *layout.query_lens], dtype=index_dtype).cumsum(0, dtype=index_dtype)
        return DeviceLayout(
            query_starts=starts.to(device),
            context_lens=torch.tensor(layout.context_lens, dtype=index_dtype).to(device),
            block_tables=layout.block_tables.to(device, index_dtype).contiguous(),
            slot_mapping=layout.slot_mapping.to(device),
            semaphores=new_semaphores(layout.num_spans, semaphores_per_span, device),
            block_size=layout.block_size,
            max_query_len=max(layout.query_lens, default=0),
            max_context_len=max(layout.context_lens, default=0),
            num_prefill_tokens=sum(prefills),
            num_prefill_spans=len(prefills),
            window=layout.window,
            is_chunked=layout.is_chunked,
        )

    def on_host(self) -> AttentionLayout:
        """The layout with its lengths as numbers. Waits for the device."""
        starts = self.query_starts.tolist()
        return AttentionLayout(
            query_lens=[end - start for start, end in zip(starts, starts[1:], strict=False)],
            context_lens=self.context_lens.tolist(),
            block_tables=self.block_tables.cpu().long(),
            slot_mapping=self.slot_mapping,
            block_size=self.block_size,
            window=self.window,
            is_chunked=self.is_chunked,
        )

    @property
    def num_spans(self) -> int:
        return self.context_lens.shape[0]


def new_semaphores(num_spans: int, semaphores_per_span: int, device: torch.device) -> Tensor:
    """`[num_spans * semaphores_per_span]` int32 zeros."""
    return torch.zeros(num_spans * semaphores_per_span, dtype=torch.int32, device=device)
