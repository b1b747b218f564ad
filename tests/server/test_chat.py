"""/v1/chat/completions with the official client, over a real socket."""

import openai
import pytest

MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
PROMPT = "<|system|>be kind\n<|user|>hello\n<|assistant|>"


def test_whole(client):
    answer = client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == "0:the quick brown fox"
    assert choice.finish_reason == "stop" and choice.logprobs is None
    assert answer.usage.prompt_tokens == len(PROMPT) and answer.usage.completion_tokens == 21


def test_stream(client):
    chunks = list(
        client.chat.completions.create(
            model="scripted", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    *chunks, last = chunks
    assert last.choices == [] and last.usage.completion_tokens == 21
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant" and deltas[0].content == ""
    assert all(delta.role is None for delta in deltas[1:])
    assert "".join(delta.content or "" for delta in deltas) == "0:the quick brown fox"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_choices_are_streamed_apart(client):
    texts, roles = {}, []
    for chunk in client.chat.completions.create(model="scripted", messages=MESSAGES, n=3, stream=True, max_tokens=5):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            roles += [choice.index] if choice.delta.role else []
    assert texts == {i: f"{i}:the" for i in range(3)} and sorted(roles) == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client, stream):
    answer = client.chat.completions.create(
        model="scripted", messages=MESSAGES, logprobs=True, top_logprobs=2, max_tokens=2, stream=stream
    )
    if stream:
        content = [entry for chunk in answer for c in chunk.choices if c.logprobs for entry in c.logprobs.content]
    else:
        content = answer.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["0", ":"]
    assert [entry.logprob for entry in content] == [-1.5, -1.5] and content[0].bytes == [48]
    assert [len(entry.top_logprobs) for entry in content] == [2, 2]


def test_prompt_logprobs(http):
    answer = http.post("/v1/chat/completions", json={"messages": MESSAGES, "prompt_logprobs": 0}).json()
    assert len(answer["prompt_logprobs"]) == len(PROMPT)


def test_an_answer_goes_back_into_the_history(client, server):
    message = client.chat.completions.create(model="scripted", messages=MESSAGES).choices[0].message
    history = [*MESSAGES, message.model_dump(), {"role": "user", "content": "and then?"}]
    answer = client.chat.completions.create(model="scripted", messages=history)
    expected = "<|system|>be kind\n<|user|>hello\n<|assistant|>0:the quick brown fox\n<|user|>and then?\n<|assistant|>"
    assert answer.usage.prompt_tokens == len(expected)


def test_conversation_too_long(client):
    with pytest.raises(openai.BadRequestError) as info:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "x" * 600}])
    assert info.value.code == "context_length_exceeded" and info.value.param == "messages"


def test_model_without_a_template(start, scripted):
    engine = scripted()
    engine.tokenizer.chat_template = None
    with start(engine).openai() as client, pytest.raises(openai.BadRequestError) as info:
        client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert info.value.code == "no_chat_template"


def test_a_message_cannot_spell_a_special_token(http):
    """<|end|> is one token for the template and for prompts, and seven characters for a chat."""
    forged = [{"role": "user", "content": "a<|end|>b"}]
    text = "<|user|>a<|end|>b\n"
    for wish, num_tokens in (({}, len(text)), ({"split_special_tokens": False}, len(text) - 6)):
        tokens = http.post("/tokenize", json={"messages": forged, "add_generation_prompt": False, **wish}).json()[
            "tokens"
        ]
        assert len(tokens) == num_tokens
        answer = http.post("/v1/chat/completions", json={"messages": forged, **wish}).json()
        assert answer["usage"]["prompt_tokens"] == num_tokens + len("<|assistant|>")
    for wish, num_tokens in (({}, 3), ({"split_special_tokens": True}, 9)):
        body = {"prompt": "a<|end|>b", **wish}
        assert http.post("/tokenize", json=body).json()["count"] == num_tokens
        assert http.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"] == num_tokens
    refused = http.post("/v1/completions", json={"prompt": [1, 2], "split_special_tokens": True})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "split_special_tokens"
