"""GroupImage: a sequence group as plain data, without its request.

It leaves out whatever the request or the tokens determine: parameters of draws, guesses, states of grammars.
"""

import math
from array import array
from typing import Literal

import msgspec

from lullm.errors import HibernationError
from lullm.kv.image.image import TableImage
from lullm.sched.beam import BeamSearch
from lullm.types.draw import draw_params
from lullm.types.outputs import LogprobRows, RequestMetrics
from lullm.types.pooling.rows import PooledRows
from lullm.types.pooling.token_rows import Pooled, pooled_of
from lullm.types.request import GenerateRequest, num_encoder_slots, tiles_of
from lullm.types.sequence import Hypothesis, Sequence, SequenceGroup, SequenceStatus

Place = Literal["waiting", "running", "swapped"]
RowArrays = tuple[bytes, bytes, bytes, bytes]
"""`LogprobRows.to_bytes`."""


class SequenceImage(msgspec.Struct, frozen=True, array_like=True):
    """A sequence. `token_ids`: of its output. `has_drawn`: a token was drawn for it. `tables`: empty: no blocks."""

    index: int
    token_ids: list[int]
    status: str
    num_computed_tokens: int
    has_drawn: bool
    tables: list[TableImage]
    stop_reason: int | str | None = None
    cumulative_logprob: float = 0.0


class BeamImage(msgspec.Struct, frozen=True, array_like=True):
    """A beam search: its finished hypotheses, and whether live beams could still beat them."""

    hypotheses: list[Hypothesis]
    can_improve: bool


class PooledImage(msgspec.Struct, frozen=True, array_like=True):
    """Pooled rows: `num_rows` so far, and their sum; or those that are kept, of `width` columns (`TokenRows`)."""

    num_rows: int
    values: list[float] = []
    width: int = 0
    rows: bytearray = bytearray()
    is_finite: bool = True


class GroupImage(msgspec.Struct, frozen=True, array_like=True):
    """A group. `times`: the fields of its `RequestMetrics`. `pooled`: its rows, if it pools."""

    place: Place
    seqs: list[SequenceImage]
    times: tuple[float, float | None, float | None, float | None, float | None]
    num_cached_tokens: int | None
    prompt_logprobs: RowArrays
    pooled: PooledImage | None = None
    beam: BeamImage | None = None

    @property
    def tables(self) -> list[TableImage]:
        """The tables of all sequences."""
        return [table for seq in self.seqs for table in seq.tables]


def take_sequence(seq: Sequence, tables: list[TableImage]) -> SequenceImage:
    """The image of a sequence without pending tokens."""
    assert not seq.num_pending, "steps in flight were drained"
    return SequenceImage(
        index=seq.index,
        token_ids=seq.token_ids[seq.prompt_len :],
        status=seq.status.name,
        # one that has ended may have been planned for some steps too many
        num_computed_tokens=min(seq.num_computed_tokens, len(seq)) if seq.is_finished else seq.num_computed_tokens,
        has_drawn=seq.draw_params is not None,
        tables=tables,
        stop_reason=seq.stop_reason,
        cumulative_logprob=seq.cumulative_logprob,
    )


def new_group_image(request: GenerateRequest) -> GroupImage:
    """The image of a request that no scheduler has seen yet."""
    seq = SequenceImage(0, [], SequenceStatus.WAITING.name, 0, False, [])
    times = (request.arrival_time, None, None, None, None)
    return GroupImage("waiting", [seq], times, None, LogprobRows().to_bytes())


def build_group(
    request: GenerateRequest, image: GroupImage, shift_s: float, max_model_len: int, vocab_size: int, block_size: int
) -> tuple[SequenceGroup, BeamSearch | None]:
    """The group, whose sequences have no ids and no blocks yet, and its beam search.

    Args:
        shift_s: added to all times.

    Raises:
        HibernationError: the image is not that of a group of this request.
    """
    group = SequenceGroup(request, [], RequestMetrics(*(t if t is None else t + shift_s for t in image.times)))  # type: ignore[arg-type]  # the first is there
    group.pooled = _build_pooled(request, image.pooled, block_size)
    search = None
    if request.params.beam_width is not None:
        search = BeamSearch.of(request, max_model_len)
        if image.beam is not None:
            search.go_on(image.beam.hypotheses, image.beam.can_improve)
    for of_seq in image.seqs:
        seq = _build_sequence(request, of_seq, max_model_len, vocab_size, block_size)
        if of_seq.has_drawn:
            seq.draw_params = draw_params(request, seq.index) if search is None else search.draw_params
        group.add(seq)
    group.unfinished = [seq for seq in group.seqs if not seq.is_finished]
    if not group.unfinished or len(group.seqs) > max(request.params.num_sequences, 1):
        raise HibernationError(
            f"request {request.request_id!r} has sequences that it never asked for, or none to go on"
        )
    group.num_cached_tokens = image.num_cached_tokens
    try:
        group.prompt_logprobs = LogprobRows.from_bytes(image.prompt_logprobs)
    except ValueError as error:
        raise HibernationError(f"request {request.request_id!r} has no readable log-probabilities: {error}") from None
    return group, search


def take_pooled(pooled: Pooled | None) -> PooledImage | None:
    """The image of a request's pooled rows."""
    if pooled is None:
        return None
    if isinstance(pooled, PooledRows):
        return PooledImage(pooled.num_rows, list(pooled.values))
    return PooledImage(pooled.num_rows, width=pooled.width, rows=pooled.rows, is_finite=pooled.is_finite)


def _build_pooled(request: GenerateRequest, image: PooledImage | None, block_size: int) -> Pooled | None:
    pooled = pooled_of(request, num_encoder_slots(request, block_size))
    if pooled is None or image is None:
        return pooled
    if isinstance(pooled, PooledRows):
        pooled.num_rows, pooled.values = image.num_rows, array("d", image.values)
    else:
        pooled.num_rows, pooled.width, pooled.rows = image.num_rows, image.width, image.rows
        pooled.is_finite = image.is_finite
        if len(image.rows) % (4 * max(image.width, 1)) or not 0 <= image.num_rows <= len(pooled.token_ids):
            raise HibernationError(f"request {request.request_id!r} has rows that no engine can have made")
    return pooled


def _build_sequence(
    request: GenerateRequest, image: SequenceImage, max_model_len: int, vocab_size: int, block_size: int
) -> Sequence:
    token_ids = request.prompt_token_ids + image.token_ids
    is_known = all(0 <= token_id < vocab_size for token_id in token_ids) and 0 < len(token_ids) <= max_model_len
    num_slots = num_encoder_slots(request, block_size)
    token_ids = [0] * num_slots + token_ids
    status = SequenceStatus.__members__.get(image.status)
    if not is_known or status is None or not 0 <= image.num_computed_tokens <= len(token_ids):
        raise HibernationError(f"request {request.request_id!r} has a sequence that no engine can have made")
    if not math.isfinite(image.cumulative_logprob):
        raise HibernationError(f"request {request.request_id!r} has a beam without a probability")
    return Sequence(
        seq_id=-1,
        index=image.index,
        token_ids=token_ids,
        prompt_len=num_slots + len(request.prompt_token_ids),
        status=status,
        num_computed_tokens=image.num_computed_tokens,
        stop_reason=image.stop_reason,
        cumulative_logprob=image.cumulative_logprob,
        cache_salt=request.cache_salt,
        adapter_digest=request.adapter_digest,
        tiles=tiles_of(request),
        num_encoder_slots=num_slots,
    )
