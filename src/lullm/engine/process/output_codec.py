"""Outputs as data. Facts of the request (prompt, ids) are not sent back, since its caller has them."""

from collections.abc import Callable, Sequence
from typing import Any

from lullm.engine.process.message import WireCompletion, WireOutput, WireRows
from lullm.types.outputs import (
    CompletionOutput,
    LogprobList,
    LogprobRows,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
)
from lullm.types.pooling.outputs import EngineOutput, PoolingOutput, PoolingRequestOutput
from lullm.types.pooling.token_rows import packed_table, table_of
from lullm.types.request import GenerateRequest

TextOf = Callable[[int], str]


def encode_output(serial: int, output: EngineOutput) -> WireOutput:
    """Encode an output. On the engine's thread, before the next step changes objects that the output refers to."""
    times = None if output.metrics is None else output.metrics.times
    if isinstance(output, PoolingRequestOutput):
        data = output.outputs.data
        return WireOutput(
            serial,
            [],
            output.finished,
            times,
            output.num_cached_tokens,
            vector=data if isinstance(data, list) else None,
            table=None if isinstance(data, list) else packed_table(data),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
        )
    completions = [
        WireCompletion(
            each.index,
            each.text,
            each.token_ids,
            each.cumulative_logprob,
            _encode_rows(each.logprobs),
            each.finish_reason,
            each.stop_reason,
        )
        for each in output.outputs
    ]
    return WireOutput(
        serial,
        completions,
        output.finished,
        times,
        output.num_cached_tokens,
        _encode_rows(output.prompt_logprobs),
    )


def decode_output(wire: WireOutput, request: GenerateRequest, text_of: TextOf) -> EngineOutput:
    """`text_of`: the text of a token, for log-probabilities."""
    metrics = None if wire.times is None else RequestMetrics(*wire.times)  # type: ignore[arg-type]  # the first is there
    if wire.vector is not None or wire.table is not None:
        return PoolingRequestOutput(
            request.request_id,
            PoolingOutput(wire.vector if wire.table is None else table_of(wire.table)),
            request.prompt_token_ids,
            wire.num_cached_tokens,
            wire.finished,
            wire.finish_reason,
            wire.stop_reason,
            metrics,
        )
    completions = [
        CompletionOutput(
            each.index,
            each.text,
            each.token_ids,
            each.cumulative_logprob,
            _decode_rows(each.logprobs, text_of),
            each.finish_reason,
            each.stop_reason,
        )
        for each in wire.completions
    ]
    return RequestOutput(
        request.request_id,
        request.prompt,
        request.prompt_token_ids,
        completions,
        wire.finished,
        metrics,
        wire.num_cached_tokens,
        _decode_rows(wire.prompt_logprobs, text_of),
    )


def _encode_rows(positions: Sequence[PositionLogprobs | None] | None) -> WireRows | None:
    if positions is None:
        return None
    assert isinstance(positions, LogprobList), "an engine gives no other"
    return WireRows(positions.rows.to_bytes(), positions.has_first_none)


def _decode_rows(wire: WireRows | None, text_of: TextOf) -> LogprobList[Any] | None:
    if wire is None:
        return None
    rows = LogprobRows.from_bytes(wire.arrays)
    return LogprobList(rows, range(-1 if wire.has_first_none else 0, len(rows)), text_of)
