"""StepLimits: the limits of a plan, which size the buffers of a step."""

from dataclasses import dataclass

from lullm.units import cdiv


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of one engine.

    Args:
        max_num_seqs: spans of a plan, and draws.
        max_num_batched_tokens: tokens of a plan.
        max_model_len: positions of a sequence.
        block_size: tokens per block.
        windows: by KV cache group, the most tokens that a row sees; None: all up to its own.
        chunked_groups: the groups with windows side by side, by number.
        num_state_blocks: by KV cache group, the blocks of a sequence's recurrent state; 0: the group has keys and
            values. Empty: all groups have them.
        num_shares: by KV cache group, the factor of block ids (`kv.cache_group`). Empty: 1 in all.
        max_in_flight: steps that are launched before the caller waits for the first one's result.
        feeds_back: their tokens may be pending, see `TokenFeedback`.
        has_adapters: spans may have adapters.
        has_planes: rows of pictures have planes of positions.
        sees_in_windows: rows of pictures see each other in groups with windows only.
        max_encoder_rows: of an encoder, in group `encoder.split.CROSS_GROUP`; 0: there is none.
        tells_pairs: a token knows which text of a pair it is in.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    windows: tuple[int | None, ...] = (None,)
    chunked_groups: tuple[int, ...] = ()
    num_state_blocks: tuple[int, ...] = ()
    num_shares: tuple[int, ...] = ()
    max_in_flight: int = 1
    feeds_back: bool = False
    has_adapters: bool = False
    has_planes: bool = False
    sees_in_windows: bool = False
    max_encoder_rows: int = 0
    tells_pairs: bool = False

    @property
    def state_groups(self) -> tuple[int, ...]:
        """The numbers of the recurrent groups."""
        return tuple(group for group, num_blocks in enumerate(self.num_state_blocks) if num_blocks)

    def table_width(self, num_tokens: int) -> int:
        """Blocks in the longest table of a sequence of `num_tokens` tokens."""
        keeps_tokens = not self.num_state_blocks or 0 in self.num_state_blocks
        width = max(cdiv(num_tokens, self.block_size) if keeps_tokens else 0, *self.num_state_blocks, 0)
        return max(width, cdiv(self.max_encoder_rows, self.block_size))
