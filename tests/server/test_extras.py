"""vLLM's fields beside OpenAI's: ids, truncation, salts, running usage, open ends, documents."""

import dataclasses

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = {"prompt": "hello", "max_tokens": 4}
OPEN_END = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
TALK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def ids(engine, text):
    return engine.tokenizer.encode(text)


def refused(response, param):
    assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text
    return response.json()["error"]["message"]


def test_token_ids_of_completions(server, http, read_events):
    answer = http.post(COMPLETIONS, json=TEXT | {"return_token_ids": True, "echo": True}).json()["choices"][0]
    assert answer["token_ids"] == ids(server.engine, "0:th") and answer["prompt_token_ids"] == ids(
        server.engine, "hello"
    )
    body = TEXT | {"return_token_ids": True, "stream": True}
    with http.stream("POST", COMPLETIONS, json=body) as response:
        chunks = [event["choices"][0] for event in read_events(response)[:-1]]
    assert [chunk["token_ids"] for chunk in chunks] == [[number] for number in ids(server.engine, "0:th")]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [ids(server.engine, "hello"), None, None, None]
    assert "token_ids" not in http.post(COMPLETIONS, json=TEXT).json()["choices"][0]


def test_token_ids_of_chats(server, http, read_events):
    prompt = ids(server.engine, "<|user|>hello\n<|assistant|>")
    answer = http.post(CHAT, json=TALK | {"return_token_ids": True}).json()
    assert answer["prompt_token_ids"] == prompt and answer["choices"][0]["token_ids"] == ids(server.engine, "0:th")
    with http.stream("POST", CHAT, json=TALK | {"return_token_ids": True, "stream": True}) as response:
        chunks = read_events(response)[:-1]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [prompt] + [None] * 4
    assert sum((chunk["choices"][0]["token_ids"] for chunk in chunks), []) == ids(server.engine, "0:th")


def test_tokens_named_by_their_ids(server, http, read_events):
    """As TRL's client asks: two tokens may have one text, and a dict by texts lacks one of them then."""
    names = [f"token_id:{number}" for number in ids(server.engine, "0:th")]
    fields = {"return_tokens_as_token_ids": True, "logprobs": 0}
    found = http.post(COMPLETIONS, json=TEXT | fields).json()["choices"][0]["logprobs"]
    assert found["tokens"] == names and found["text_offset"] == [0, 1, 2, 3]
    with http.stream("POST", COMPLETIONS, json=TEXT | fields | {"stream": True}) as response:
        chunks = [event["choices"][0]["logprobs"] for event in read_events(response)[:-1]]
    assert [(chunk["tokens"], chunk["text_offset"]) for chunk in chunks] == [([n], [i]) for i, n in enumerate(names)]
    body = TALK | fields | {"logprobs": True, "top_logprobs": 1}
    content = http.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == names
    assert bytes(content[1]["bytes"]) == b":" and content[1]["top_logprobs"][0]["token"].startswith("token_id:")
    body["return_tokens_as_token_ids"] = False
    assert http.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"][1]["token"] == ":"


def test_usage_in_every_chunk(http, read_events):
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for path, body in ((COMPLETIONS, TEXT), (CHAT, TALK)):
        with http.stream("POST", path, json=body | options) as response:
            counts = [event["usage"]["completion_tokens"] for event in read_events(response)[:-1]]
        assert counts == sorted(counts) and counts[-1] == 4 and {1, 2, 3, 4} <= set(counts)


def test_usage_of_every_stream(start, scripted, read_events):
    """vLLM's --enable-force-include-usage."""
    with start(scripted(), enable_force_include_usage=True).http() as http:
        for path, body in ((COMPLETIONS, TEXT), (CHAT, TALK)):
            with http.stream("POST", path, json=body | {"stream": True}) as response:
                *chunks, last = read_events(response)[:-1]
            assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4
            assert all(chunk["usage"] is None for chunk in chunks)


def test_special_tokens_of_chats(http):
    refused = http.post(CHAT, json=TALK | {"add_special_tokens": True}).json()["error"]
    assert refused["param"] == "add_special_tokens" and "template" in refused["message"]
    assert http.post(CHAT, json=TALK | {"add_special_tokens": False}).status_code == 200
    refused = http.post(COMPLETIONS, json=TEXT | {"prompt": [1], "add_special_tokens": False}).json()["error"]
    assert refused["param"] == "add_special_tokens"


def test_the_request_id_of_the_body(http):
    assert http.post(COMPLETIONS, json=TEXT | {"request_id": "a-1"}).json()["id"] == "cmpl-a-1"
    assert (
        http.post(CHAT, json=TALK | {"request_id": "a-1"}, headers={"X-Request-Id": "b"}).json()["id"] == "chatcmpl-b"
    )
    refused(http.post(COMPLETIONS, json=TEXT | {"request_id": "a b\r\n"}), "request_id")


@pytest.mark.parametrize(("wanted", "num"), [(True, 1), (False, None), (3, 3), (None, None)])
def test_words_for_log_probabilities(http, wanted, num):
    found = http.post(COMPLETIONS, json=TEXT | {"logprobs": wanted}).json()["choices"][0]["logprobs"]
    assert (found and len(found["top_logprobs"][0])) == num


def test_all_log_probabilities(start, scripted):
    engine = scripted(max_logprobs=257)
    with start(engine).http() as http:
        answer = http.post(COMPLETIONS, json=TEXT | {"logprobs": -1, "prompt_logprobs": -1})
        assert answer.status_code == 200, answer.text
        http.post(CHAT, json=TALK | {"logprobs": True, "top_logprobs": -1})
    assert [(params.logprobs, params.prompt_logprobs) for _, params, _ in engine.seen] == [(257, 257), (257, None)]


def test_all_log_probabilities_need_a_server_that_gives_them(http):
    assert "max_logprobs" in refused(http.post(COMPLETIONS, json=TEXT | {"logprobs": -1}), "logprobs")


def test_long_prompts_are_truncated_on_demand(server, http):
    engine = server.engine

    def kept(path, **fields):
        answer = http.post(path, json=(TEXT if path == COMPLETIONS else TALK) | {"return_token_ids": True} | fields)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        return engine.tokenizer.decode(found.get("prompt_token_ids") or found["choices"][0]["prompt_token_ids"])

    assert (
        kept(COMPLETIONS, truncate_prompt_tokens=2) == "lo" and kept(COMPLETIONS, truncate_prompt_tokens=9) == "hello"
    )
    assert kept(COMPLETIONS, prompt="x" * 600 + "y", truncate_prompt_tokens=-1) == "x" * 507 + "y"
    assert kept(CHAT, truncate_prompt_tokens=5) == "ant|>"
    echo = http.post(COMPLETIONS, json=TEXT | {"truncate_prompt_tokens": 2, "echo": True}).json()
    assert echo["choices"][0]["text"] == "lo0:th" and echo["usage"]["prompt_tokens"] == 2
    for wrong in (0, -2, "all"):
        refused(http.post(COMPLETIONS, json=TEXT | {"truncate_prompt_tokens": wrong}), "truncate_prompt_tokens")


def test_a_conversation_that_goes_on_with_its_last_message(server, http):
    talk = {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}],
        "max_tokens": 4,
    }
    fields = {"continue_final_message": True, "return_token_ids": True}
    answer = http.post(CHAT, json=talk | fields).json()
    assert server.engine.tokenizer.decode(answer["prompt_token_ids"]) == "<|user|>hi\n<|assistant|>Well, "
    assert answer["choices"][0]["message"]["content"] == "0:th"
    refused(http.post(CHAT, json=talk | fields | {"add_generation_prompt": True}), "continue_final_message")
    tokens = http.post("/tokenize", json={"messages": talk["messages"], "continue_final_message": True}).json()[
        "tokens"
    ]
    assert tokens == answer["prompt_token_ids"]


def test_an_echo_begins_with_the_last_message(http, read_events):
    talk = {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}],
        "max_tokens": 4,
    }
    talk |= {"continue_final_message": True, "echo": True}
    assert http.post(CHAT, json=talk).json()["choices"][0]["message"]["content"] == "Well, 0:th"
    with http.stream("POST", CHAT, json=talk | {"stream": True}) as response:
        pieces = [event["choices"][0]["delta"].get("content", "") for event in read_events(response)[:-1]]
    assert pieces[0] == "Well, " and "".join(pieces) == "Well, 0:th"
    assert http.post(CHAT, json=TALK | {"echo": True}).json()["choices"][0]["message"]["content"] == "0:th"


def test_documents_need_a_template_that_takes_them(http):
    assert "no documents" in refused(http.post(CHAT, json=TALK | {"documents": [{"text": "x"}]}), "documents")
    assert http.post(CHAT, json=TALK | {"documents": []}).status_code == 200


def test_a_clients_template_is_refused(http):
    refused(http.post(CHAT, json=TALK | {"chat_template": "{{ 1 }}"}), "chat_template")


def test_a_salt_is_the_engines(start, scripted):
    engine = scripted()
    salts = []
    prepare = engine.prepare

    async def recorded(*arguments):
        request = await prepare(*arguments)
        salts.append(request.cache_salt)
        return request

    engine.prepare = recorded
    with start(engine).http() as http:
        for path, body in ((COMPLETIONS, TEXT), (COMPLETIONS, TEXT | {"prompt": [1, 2]}), (CHAT, TALK)):
            assert http.post(path, json=body | {"cache_salt": "s"}).status_code == 200
            http.post(path, json=body)
        refused(http.post(COMPLETIONS, json=TEXT | {"cache_salt": ""}), "cache_salt")
    assert salts == ["s", ""] * 3


def test_a_suffix_needs_a_model_that_fills_in(http):
    assert "filling in" in refused(http.post(COMPLETIONS, json=TEXT | {"suffix": "end"}), "suffix")
    refused(http.post(COMPLETIONS, json=TEXT | {"prompt": [1, 2], "suffix": "end"}), "suffix")
    assert http.post(COMPLETIONS, json=TEXT | {"suffix": ""}).status_code == 200


def test_a_suffix(start, scripted):
    engine = scripted()
    tokens = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    engine.tokenizer.backend.add_special_tokens(tokens)
    processor = engine.input_processor._generation
    processor._limits = dataclasses.replace(processor._limits, vocab_size=processor._limits.vocab_size + len(tokens))
    with start(engine).http() as http:
        answer = http.post(COMPLETIONS, json=TEXT | {"prompt": ["a", "b"], "suffix": "c", "return_token_ids": True})
    shown = [engine.tokenizer.decode(choice["prompt_token_ids"], False) for choice in answer.json()["choices"]]
    assert shown == [f"{tokens[0]}{prefix}{tokens[1]}c{tokens[2]}" for prefix in "ab"]
