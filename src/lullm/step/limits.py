"""StepLimits: the limits of a plan, which size the buffers of a step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of one engine.

    Args:
        max_num_seqs: spans of a plan, and draws.
        max_num_batched_tokens: tokens of a plan.
        max_model_len: positions of a sequence.
        block_size: tokens per block.
        windows: by KV cache group, the tokens that a row sees at most; None: all up to its own.
        max_in_flight: steps that are launched before the result of the first of them is asked for.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    windows: tuple[int | None, ...] = (None,)
    max_in_flight: int = 1
