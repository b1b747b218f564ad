"""From bodies to SamplingParams."""

import json

import pytest

from lullm.errors import InvalidRequestError
from lullm.server.error import ApiError
from lullm.server.openai.schema import ChatBody, CompletionBody
from lullm.server.openai.validation import (
    MAX_IDS_PER_STEP,
    check_num_logprobs,
    check_num_sequences,
    check_priority,
    check_token_lists,
    keep_alive_s,
    sampling_params,
)
from lullm.server.wire import parse_body
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import OutputKind, SamplingParams


@pytest.fixture
def engine(scripted):
    return scripted()


def completion(**fields) -> CompletionBody:
    return parse_body(CompletionBody, json.dumps({"prompt": "x"} | fields).encode())


def chat(**fields) -> ChatBody:
    return parse_body(ChatBody, json.dumps({"messages": [{"role": "user", "content": "x"}]} | fields).encode())


def test_unset_fields_are_the_models_defaults(engine):
    engine.default_params = SamplingParams(temperature=0.3, top_p=0.9, top_k=5)
    params = sampling_params(completion(top_p=0.5, temperature=None), engine)
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.3, 0.5, 5, 16)
    assert params.output_kind is OutputKind.FINAL_ONLY
    assert sampling_params(chat(), engine).max_tokens is None
    assert sampling_params(chat(stream=True), engine).output_kind is OutputKind.DELTA


def test_every_field_reaches_the_parameters(engine):
    fields = {
        "n": 2,
        "stop": ["a", "b"],
        "seed": 3,
        "temperature": 0.7,
        "top_p": 0.8,
        "presence_penalty": 0.1,
        "frequency_penalty": -0.2,
        "max_tokens": 9,
        "top_k": 4,
        "min_p": 0.05,
        "repetition_penalty": 1.2,
        "ignore_eos": True,
        "min_tokens": 2,
        "stop_token_ids": [5],
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "allowed_token_ids": [1, 2],
        "bad_words": ["no"],
        "prompt_logprobs": 1,
    }
    for params in (sampling_params(completion(**fields), engine), sampling_params(chat(**fields), engine)):
        for name, value in fields.items():
            given = getattr(params, name)
            assert (list(given) if isinstance(given, tuple) else given) == value
    assert sampling_params(chat(logit_bias={"5": -1}), engine).logit_bias == {5: -1.0}
    assert sampling_params(completion(best_of=3, logprobs=2), engine).num_sequences == 3
    assert sampling_params(completion(stop="x"), engine).stop == ("x",)


def test_chat_limits(engine):
    assert sampling_params(chat(max_completion_tokens=5), engine).max_tokens == 5
    assert sampling_params(chat(max_completion_tokens=5, max_tokens=5), engine).max_tokens == 5
    with pytest.raises(ApiError) as info:
        sampling_params(chat(max_completion_tokens=5, max_tokens=6), engine)
    assert info.value.param == "max_completion_tokens"


def test_chat_logprobs(engine):
    assert sampling_params(chat(logprobs=True), engine).logprobs == 0
    assert sampling_params(chat(logprobs=True, top_logprobs=3), engine).logprobs == 3
    assert sampling_params(chat(logprobs=False), engine).logprobs is None
    with pytest.raises(ApiError) as info:
        sampling_params(chat(top_logprobs=3), engine)
    assert info.value.param == "top_logprobs"


def test_echo(engine):
    params = sampling_params(completion(echo=True, logprobs=2), engine)
    assert params.prompt_logprobs == 2
    assert sampling_params(completion(echo=True), engine).prompt_logprobs is None
    body = completion(echo=True, max_tokens=0)
    assert body.is_echo_only and sampling_params(body, engine).max_tokens == 1
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        sampling_params(completion(max_tokens=0), engine)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logprobs": -2}, "logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"seed": 2**70}, "seed"),
        ({"min_tokens": 20}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
    ],
)
def test_out_of_range(engine, fields, param):
    with pytest.raises((ApiError, InvalidRequestError)) as info:
        sampling_params(completion(**fields), engine)
    assert info.value.param == param


def test_keep_alive_is_a_time():
    for value, seconds in ((None, None), (0, 0.0), ("5m", 300.0), ("-1", -1.0), (2.5, 2.5), ("300", 300.0)):
        assert keep_alive_s(chat(keep_alive=value)) == seconds
    with pytest.raises(ApiError) as info:
        keep_alive_s(chat(keep_alive="soon"))
    assert info.value.param == "keep_alive"


def test_priority_must_mean_something(engine, scripted):
    assert check_priority(chat(priority=0), engine) == 0
    with pytest.raises(ApiError) as info:
        check_priority(chat(priority=-1), engine)
    assert info.value.param == "priority"
    assert check_priority(chat(priority=-1), scripted(scheduling_policy="priority")) == -1


def test_sequences_of_one_request_are_bounded():
    check_num_sequences(4, SamplingParams(n=1024), 1024)
    with pytest.raises(ApiError):
        check_num_sequences(5, SamplingParams(n=1024), 1024)
    for fields, param in (({"n": 5}, "n"), ({"best_of": 5}, "best_of"), ({"beam_width": 5}, "beam_width")):
        with pytest.raises(ApiError) as info:
            check_num_sequences(1, SamplingParams(**fields, temperature=0 if param == "beam_width" else 1), 4)
        assert info.value.param == param


def logprobs_of(engine, body, prompts, max_model_len=100) -> int:
    """The largest limit that is too small for the body, whose prompts have so many tokens; 0: none is."""
    params = sampling_params(body, engine)
    requests = [GenerateRequest("r", None, [1] * num, params, 0, 0.0) for num in prompts]

    def passes(limit):
        try:
            check_num_logprobs(body, requests, max_model_len, limit)
        except ApiError as error:
            assert error.code == "too_many_logprobs"
            return False
        return True

    return next(limit for limit in range(-1, 10_000) if passes(limit))


@pytest.mark.parametrize(
    ("fields", "prompts", "num"),
    [
        ({"n": 3, "max_tokens": 10}, [5, 5], 0),
        ({"n": 3, "max_tokens": 10, "logprobs": 4}, [5, 7], 2 * 3 * 10 * 5),
        ({"best_of": 3, "max_tokens": 10, "logprobs": 0}, [5], 3 * 10),
        ({"max_tokens": 1000, "logprobs": 1}, [30, 60], (70 + 40) * 2),
        ({"n": 2, "prompt_logprobs": 2}, [5], 2 * 5 * 3),
        ({"n": 2, "max_tokens": 10, "logprobs": 1, "echo": True}, [5], 2 * 2 * (10 + 5)),
        ({"n": 9, "echo": True}, [5], 9 * 5),
    ],
)
def test_log_probabilities_of_one_request_are_counted(engine, fields, prompts, num):
    assert logprobs_of(engine, completion(**fields), prompts) == max(num, 0)


def test_log_probabilities_of_a_chat_are_counted(engine):
    assert logprobs_of(engine, chat(logprobs=True, n=2), [40]) == 2 * 60
    assert logprobs_of(engine, chat(n=2, prompt_logprobs=1), [40]) == 40 * 2
    with pytest.raises(ApiError) as info:
        body = chat(logprobs=True, top_logprobs=4, max_tokens=7, n=3)
        request = GenerateRequest("r", None, [1] * 9, sampling_params(body, engine), 0, 0.0)
        check_num_logprobs(body, [request], 100, 104)
    message = str(info.value)
    assert info.value.param == "top_logprobs" and "--max-request-logprobs" in message
    assert "1 prompts x 3 completions x 5 at each of up to 7 tokens" in message and "105" in message


def test_token_lists_of_all_sequences_are_bounded():
    bias = {token_id: 1.0 for token_id in range(MAX_IDS_PER_STEP // 64)}
    check_token_lists(1, SamplingParams(n=64, logit_bias=bias), 128)
    check_token_lists(1000, SamplingParams(n=1, logit_bias=bias), 64)
    for num_prompts, n in ((1, 65), (5, 16)):
        with pytest.raises(ApiError) as info:
            check_token_lists(num_prompts, SamplingParams(n=n, logit_bias=bias), 128)
        assert info.value.param == "logit_bias"
    with pytest.raises(ApiError):
        check_token_lists(1, SamplingParams(n=100, allowed_token_ids=list(bias)), 128)
