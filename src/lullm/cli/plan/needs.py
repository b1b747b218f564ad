"""Needs: what a plan says of a model's memory and speed, on one machine or in one layout of several devices."""

from dataclasses import dataclass

from lullm.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The needs and speeds of a model. Sizes in bytes, of the fullest device; speeds in tokens per second.

    Attributes:
        weights: their format. kv_bytes_per_token: of a sequence of the planned length, on average. num_sequences: of
            that length, in all replicas.
        decode: of one sequence. batch_decode: of `concurrency` sequences together. prefill: of a prompt of that length.
            All three without adapters and guesses. An encoder decodes nothing and has no cache: those numbers are 0.
        adapters_bytes: of their places, and of those that host memory keeps. draft_bytes: of the draft model's weights;
            its KV cache counts with the model's.
    """

    weights: str
    weights_bytes: int
    prefill: float
    kv_bytes_per_token: float = 0.0
    num_sequences: int = 0
    decode: float = 0.0
    batch_decode: float = 0.0
    adapters_bytes: int = 0
    draft_bytes: int = 0


def shown_held(each: Needs) -> str:
    """`'the weights, which take 1.1 GiB as int8, and adapters, 12.0 MiB'`."""
    text = f"the weights, which take {format_bytes(each.weights_bytes)} as {each.weights}"
    beside = {"adapters": each.adapters_bytes, "the draft model": each.draft_bytes}
    return ", and ".join([text, *(f"{name}, {format_bytes(size)}" for name, size in beside.items() if size)])
