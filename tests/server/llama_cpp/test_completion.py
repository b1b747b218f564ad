"""llama.cpp's /completion, /infill, /props and /apply-template, with bodies as its documentation has them."""

import pytest

SCRIPT = "0:the quick brown fox"
BODY = {"prompt": "hello"}
DRAWN = ("temperature", "top_k", "top_p", "min_p")
FIRST_FIELDS = {"index", "content", "tokens", "stop", "tokens_predicted", "tokens_evaluated"}
LAST_FIELDS = FIRST_FIELDS | {
    *("stop_type", "stopping_word", "model", "prompt", "generation_settings", "has_new_line", "truncated"),
    *("tokens_cached", "timings"),
}


def check_figures(answer):
    assert answer.keys() == LAST_FIELDS
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "eos", "")
    assert (answer["tokens_evaluated"], answer["tokens_predicted"], answer["tokens_cached"]) == (5, 21, 26)
    timings = answer["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (3, 2, 21)
    for name in ("prompt", "predicted"):
        num, ms = timings[f"{name}_n"], timings[f"{name}_ms"]
        assert ms >= 0 and timings[f"{name}_per_token_ms"] == pytest.approx(ms / num)


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_whole(http, path):
    answer = http.post(path, json=BODY).json()
    assert answer["content"] == SCRIPT and answer["model"] == "scripted" and answer["prompt"] == "hello"
    assert answer["has_new_line"] is False and answer["tokens"] == []
    check_figures(answer)


def test_stream_says_the_same(http, read_events):
    with http.stream("POST", "/completion", json=BODY | {"stream": True}) as response:
        *pieces, last = read_events(response)
    assert "".join(piece["content"] for piece in pieces) == SCRIPT and last["content"] == ""
    assert all(piece.keys() == FIRST_FIELDS and piece["stop"] is False for piece in pieces)
    assert [piece["tokens_predicted"] for piece in pieces] == list(range(1, 22))
    check_figures(last)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_and_probabilities(http, server, read_events, stream):
    body = BODY | {"n_predict": 2, "n_probs": 2, "return_tokens": True, "stream": stream}
    if stream:
        with http.stream("POST", "/completion", json=body) as response:
            answers = read_events(response)
    else:
        answers = [http.post("/completion", json=body).json()]
    tokens = server.engine.tokenizer.encode("0:")
    assert [token for answer in answers for token in answer["tokens"]] == tokens
    rows = [row for answer in answers for row in answer.get("completion_probabilities", ())]
    assert [(row["id"], row["token"]) for row in rows] == list(zip(tokens, "0:", strict=True))
    for row in rows:
        assert [entry["id"] for entry in row["top_logprobs"]] == [7, row["id"]]
    assert answers[-1]["stop_type"] == "limit"


def test_a_stop_word(http):
    answer = http.post("/completion", json=BODY | {"stop": [" brown"]}).json()
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("0:the quick", "word", " brown")


def test_a_prompt_of_ids(http, server):
    ids = server.engine.tokenizer.encode("hey")
    assert http.post("/completion", json={"prompt": ids}).json()["tokens_evaluated"] == 3


def test_forms_of_one_prompt(http, server):
    ids = server.engine.tokenizer.encode("hello")
    texts = (["hello"], {"prompt_string": "hello"}, [{"prompt_string": "hello", "multimodal_data": []}])
    for prompt in (*texts, [ids[0], "ello"], ["he", ids[2], "lo"], [[*ids[:4], "o"]]):
        answer = http.post("/completion", json={"prompt": prompt}).json()
        told = "hello" if prompt in texts else ""  # tokens have no text of their own
        assert (answer["content"], answer["prompt"], answer["tokens_evaluated"]) == (SCRIPT, told, 5)


PROMPTS = (["a", "bcd"], ["a", {"prompt_string": "bcd"}], ["a", ["b", "cd"]])


@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("num", [1, 2])
def test_several_completions(http, read_events, prompts, num):
    body = {"prompt": prompts, "n_cmpl": num, "return_tokens": True}
    whole = http.post("/completion", json=body).json()
    assert [answer["index"] for answer in whole] == list(range(2 * num))
    assert [answer["content"] for answer in whole] == [f"{index % num}{SCRIPT[1:]}" for index in range(2 * num)]
    assert [answer["tokens_evaluated"] for answer in whole] == [1] * num + [3] * num
    assert [answer["tokens_predicted"] for answer in whole] == [21] * 2 * num
    assert [answer["timings"]["predicted_n"] for answer in whole] == [21] * 2 * num
    with http.stream("POST", "/completion", json=body | {"stream": True}) as response:
        events = read_events(response)
    for answer in whole:
        *pieces, last = [event for event in events if event["index"] == answer["index"]]
        assert "".join(piece["content"] for piece in pieces) == answer["content"] and last["stop"]
        assert [token for piece in pieces for token in piece["tokens"]] == answer["tokens"]
        assert last["tokens_predicted"] == 21 and not any(piece["stop"] for piece in pieces)


def test_slots(http, server, start, scripted):
    slots = http.get("/slots").json()
    assert len(slots) == server.engine.config.max_num_seqs
    assert slots[0].keys() == {"id", "is_processing", "n_ctx", "speculative"} and slots[0]["n_ctx"] == 512
    assert [slot["is_processing"] for slot in slots[:4]] == [True, True, False, False]  # as its stats say
    assert http.get("/slots", params={"fail_on_no_slot": 1}).status_code == 200
    with start(scripted(max_num_seqs=2)).http() as full:
        assert full.get("/slots").status_code == 200
        answer = full.get("/slots", params={"fail_on_no_slot": 1})
    assert answer.status_code == 503 and answer.json()["error"]["type"] == "unavailable_error"


def test_parameters_reach_the_engine(http, server):
    fields = {"n_predict": 5, "seed": 3, "temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.1}
    fields |= {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25, "ignore_eos": True}
    fields |= {"logit_bias": [[7, 1.5], [8, False]], "cache_prompt": True}
    response = http.post("/completion", json=BODY | fields)
    assert response.headers["X-Lullm-Ignored"] == "cache_prompt"
    params = server.engine.seen[-1][1]
    assert (params.max_tokens, params.seed, params.temperature, params.top_k) == (5, 3, 0.25, 7)
    assert (params.top_p, params.min_p, params.repetition_penalty) == (0.5, 0.1, 1.5)
    assert (params.presence_penalty, params.frequency_penalty, params.ignore_eos) == (0.5, 0.25, True)
    assert params.logit_bias == {7: 1.5, 8: -100.0}
    used = response.json()["generation_settings"]
    assert used["seed"] == 3 and used["n_predict"] == 5 and used["repeat_penalty"] == 1.5 and used["stream"] is False
    http.post("/completion", json=BODY | {"n_predict": -1, "seed": -1, "logit_bias": {"7": 2}})
    params = server.engine.seen[-1][1]
    assert (params.max_tokens, params.seed, params.logit_bias) == (512, None, {7: 2.0})


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", []]}, "prompt"),
        ({"prompt": [1, None]}, "prompt"),
        ({"prompt": [1, 10**9]}, "prompt"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["aGk="]}}, "send them in a chat"),
        ({"prompt": {"prompt_string": "x", "words": 1}}, "prompt"),
        ({"prompt": ["x"] * 4097}, "4096"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"n_cmpl": 2000}, "n_cmpl"),
        ({"prompt": ""}, "prompt"),
        ({"n_predict": 0}, "n_predict"),
        ({"n_probs": 99}, "n_probs"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"temperature": -1}, "temperature"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"logit_bias": [["word", 1]]}, "logit_bias"),
        ({"logit_bias": [[[1], 1]]}, "logit_bias"),
        ({"logit_bias": 7}, "logit_bias"),
        ({"mirostat": 2}, "mirostat"),
        ({"dry_multiplier": 0.8}, "dry_multiplier"),
        ({"stop": ["s"] * 65}, "stop"),
        ({"grammar": "root ::= 1", "json_schema": {}}, "grammar"),
    ],
)
def test_refusals_have_the_dialects_envelope(http, fields, word):
    for stream in (False, True):
        response = http.post("/completion", json=BODY | fields | {"stream": stream})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error.keys() == {"code", "message", "type"}
        assert (error["code"], error["type"]) == (400, "invalid_request_error") and word in error["message"]


def test_other_errors(http, start, scripted):
    error = http.post("/completion", json={"prompt": "x" * 600}).json()["error"]
    assert error["type"] == "exceed_context_size_error"
    with start(scripted(), api_keys=("right",)).http() as keyed:
        assert keyed.get("/props").json()["error"]["type"] == "authentication_error"
    error = http.post("/v1/completions", json={"prompt": ""}).json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}  # OpenAI's


def test_a_failure_behind_the_first_event(start, scripted, read_events):
    with (
        start(scripted()).http() as http,
        http.stream("POST", "/completion", json={"prompt": "crash", "stream": True}) as response,
    ):
        *_, last = read_events(response)
    assert last["error"]["code"] == 500


def test_infill_needs_tokens_for_it(http):
    response = http.post("/infill", json={"input_prefix": "def f(", "input_suffix": "return 1", "prompt": "x"})
    assert response.status_code == 400 and "suffix" in response.json()["error"]["message"]


def test_props(start, scripted):
    engine = scripted(enable_sleep_mode=True)
    with start(engine).http() as http:
        props = http.get("/props").json()
        assert (props["model_alias"], props["total_slots"]) == ("scripted", engine.config.max_num_seqs)
        assert props["default_generation_settings"]["n_ctx"] == 512
        params = props["default_generation_settings"]["params"]
        assert [params[name] for name in DRAWN] == [0.5, 40, 0.95, 0.05], "the model's own, then llama.cpp's"
        assert props["eos_token"] == "<|end|>" and "add_generation_prompt" in props["chat_template"]
        assert props["is_sleeping"] is False
        http.post("/sleep").raise_for_status()
        assert http.get("/props").json()["is_sleeping"] is True


def test_what_a_body_leaves_open(http):
    """It was drawn from the whole distribution, which llama.cpp's clients do not expect."""
    for given, expected in [({}, [0.5, 40, 0.95, 0.05]), ({"temperature": 1, "min_p": 0}, [1, 40, 0.95, 0])]:
        used = http.post("/completion", json=BODY | given).json()["generation_settings"]
        assert [used[name] for name in DRAWN] == expected


def test_apply_template(http):
    messages = [{"role": "user", "content": "hello"}]
    assert http.post("/apply-template", json={"messages": messages}).json() == {
        "prompt": "<|user|>hello\n<|assistant|>"
    }
    body = {"messages": messages, "add_generation_prompt": False}
    assert http.post("/apply-template", json=body).json() == {"prompt": "<|user|>hello\n"}
    assert http.post("/apply-template", json={"messages": []}).json()["error"]["code"] == 400
