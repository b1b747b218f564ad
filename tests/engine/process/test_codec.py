"""What crosses between processes arrives as it was sent: requests, outputs, and frames cut anywhere."""

import random

import msgspec
import pytest

from lullm.engine.process.frame import FrameReader, framed
from lullm.engine.process.message import Admit, Outputs, Status, decode_command, decode_news, encode
from lullm.engine.process.output_codec import decode_output, encode_output
from lullm.engine.process.request_codec import decode_request, encode_request
from lullm.types.guided.params import Guide
from lullm.types.guided.rules import TimestampRules, TokenRules
from lullm.types.monitor.stats import EngineStats
from lullm.types.outputs import CompletionOutput, LogprobList, LogprobRows, RequestMetrics, RequestOutput
from lullm.types.pooling.outputs import PoolingOutput, PoolingRequestOutput
from lullm.types.pooling.params import Pooling
from lullm.types.pooling.token_rows import table_of
from lullm.types.reply.form import ReplyForm
from lullm.types.reply.rules import ReplyRules, ThinkingTokens, Tool
from lullm.types.request import NO_TOKENS, GenerateRequest
from lullm.types.sampling_params import OutputKind, SamplingParams
from lullm.types.vision.tile import Tile, TilePlace


def crossed(request):
    command = decode_command(encode(Admit(3, encode_request(request), 1.5)))
    assert command.serial == 3
    return decode_request(command.request)


def request_with(params, **fields):
    return GenerateRequest("id", "a text", [1, 2, 3], params, 2**64 - 1, 12.5, **fields)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(n=3, best_of=5, temperature=0.25, top_p=0.5, top_k=-1, min_p=0.1, seed=-(2**63)),
        SamplingParams(stop=["end", "lone \ud800"], stop_token_ids=[4, 5], min_tokens=2, max_tokens=None),
        SamplingParams(logprobs=0, prompt_logprobs=2, logit_bias={7: -1.5}, ignore_eos=True),
        SamplingParams(allowed_token_ids=[1, 2], repetition_penalty=1.5, skip_special_tokens=False),
        SamplingParams(beam_width=3, n=2, length_penalty=0.5, early_stopping="never"),
        SamplingParams(thinking_token_budget=0, output_kind=OutputKind.DELTA, include_stop_str_in_output=True),
    ],
)
def test_parameters(params):
    assert crossed(request_with(params)).params == params


def test_what_has_become_something_else_stays_at_home():
    params = SamplingParams(bad_words=["no"], truncate_prompt_tokens=3)
    found = crossed(request_with(params, bad_words_ids=((1, 2), (3,))))
    assert found.params == SamplingParams() and found.bad_words_ids == ((1, 2), (3,))
    assert found.prompt is None, "its caller has it"


def test_the_rest_of_a_request():
    thinking = ThinkingTokens((1,), (2, 3), begins_inside=True)
    reply = ReplyRules(ReplyForm(), (Tool("t"),), thinking=thinking, shown_token_ids=frozenset({9, 8}))
    request = request_with(
        SamplingParams(),
        priority=-(10**30),
        end_token_ids=(5, 6),
        guide=Guide("start: /a+/", (5,)),
        cache_salt="salt \udfff",
        reply=reply,
        tiles=(TilePlace(Tile.of(1, 1, b"rgb"), 1, 2),),
        rules=TokenRules((4,), (5, 6), TimestampRules(9, 8, 3)),
    )
    found = crossed(request)
    assert found.rules == request.rules
    assert found.tiles == request.tiles
    assert (found.request_id, found.prompt_token_ids, found.seed) == ("id", [1, 2, 3], 2**64 - 1)
    assert found.priority < -(2**62), "as low as can be said"
    assert (found.end_token_ids, found.guide, found.cache_salt) == ((5, 6), request.guide, "salt \udfff")
    assert (found.reply.thinking, found.reply.shown_token_ids) == (thinking, frozenset({8, 9}))
    pooling = Pooling("embed", "last", "normalize", 8)
    assert crossed(GenerateRequest("v", None, [1], NO_TOKENS, 0, 0.0, pooling=pooling)).pooling == pooling


def test_a_number_without_a_bound_is_cut_to_what_can_be_said():
    assert crossed(request_with(SamplingParams(max_tokens=10**40))).params.max_tokens == 2**63 - 1


def text_of(token_id):
    return f"<{token_id}>"


def rows_of(*rows):
    found = LogprobRows()
    found.extend(rows)
    return found


def came_back(output, request):
    news = decode_news(encode(Outputs([encode_output(4, output)])))
    [wire] = news.outputs
    assert wire.serial == 4 and news.status is None
    return decode_output(wire, request, text_of)


def test_outputs():
    request = request_with(SamplingParams(logprobs=1))
    rows = rows_of([(5, -0.5, 1), (6, -1.5, 2)], [(7, -0.25, 3)])
    prompt_rows = rows_of([(1, -2.0, 9)])
    output = RequestOutput(
        "id",
        "a text",
        [1, 2, 3],
        [
            CompletionOutput(0, "grüße", [5, 7], -0.75, LogprobList(rows, range(2), text_of), "stop", "end"),
            CompletionOutput(2, "", [], finish_reason="length", stop_reason=17),
        ],
        True,
        RequestMetrics(1.0, 2.0, None, 3.0, 4.0),
        2,
        LogprobList(prompt_rows, range(-1, 1), text_of),
    )
    found = came_back(output, request)
    assert found == output
    assert found.prompt_logprobs[0] is None and found.outputs[0].logprobs[0][5].decoded_token == "<5>"
    found.outputs[0].absorb(came_back(output, request).outputs[0])
    assert len(found.outputs[0].logprobs) == 4, "a backlog joins deltas"


def test_vectors():
    request = GenerateRequest("v", None, [1, 2], NO_TOKENS, 0, 0.0, pooling=Pooling("embed", "last", "none"))
    vector = PoolingRequestOutput("v", PoolingOutput([0.1, -2.0]), [1, 2], 1, metrics=RequestMetrics(1.0))
    assert came_back(vector, request) == vector
    aborted = PoolingRequestOutput("v", PoolingOutput([]), [1, 2], finish_reason="abort", stop_reason="NaN")
    assert came_back(aborted, request) == aborted
    for rows in (table_of((3, bytearray(range(24)))), table_of((3, bytearray()))):
        several = PoolingRequestOutput("v", PoolingOutput(rows), [1, 2])
        assert came_back(several, request) == several
        assert came_back(several, request).outputs.data.flags.writeable, "torch shares its memory"


def test_a_status():
    status = Status(EngineStats(preemptions_total={("swap", "cheaper"): 2}), "paused", ("weights",), True, 1.5)
    assert decode_news(encode(Outputs([], status))).status == status


def test_frames_cut_anywhere():
    rng = random.Random(7)
    messages = [rng.randbytes(rng.choice([0, 1, 7, 300, 70_000])) for _ in range(40)]
    data, found, reader = b"".join(map(framed, messages)), [], FrameReader()
    while data:
        num_bytes = rng.choice([1, 3, 9, 500, 100_000])
        found += reader.feed(data[:num_bytes])
        data = data[num_bytes:]
    assert found == messages


def test_what_is_no_message_is_refused():
    with pytest.raises(msgspec.DecodeError):
        decode_command(encode(["unknown", 1]))
