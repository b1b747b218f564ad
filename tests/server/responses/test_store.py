"""Stored responses: gone on from, retrieved, deleted, computed in the background, within a bound of memory."""

import time

import openai
import pytest
from kit.template.styles import QWEN_TOOLS
from openai.types.responses import Response

SCRIPT = "0:the quick brown fox"
STORE = 1 << 20


@pytest.fixture(scope="module")
def storing(start_for_module, scripted):
    return start_for_module(scripted(), response_store=STORE)


@pytest.fixture
def client(storing):
    with storing.openai() as client:
        yield client


def ended(client, answer):
    """The response once it is no longer computed."""
    limit = time.monotonic() + 10
    while answer.status == "in_progress":
        assert time.monotonic() < limit, "the response does not end"
        time.sleep(0.01)
        answer = client.responses.retrieve(answer.id)
    return answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on(client, stream):
    first = client.responses.create(model="scripted", input="a", instructions="be kind")
    assert first.store is True and first.previous_response_id is None
    asked = {"model": "scripted", "input": [{"role": "user", "content": "b"}], "previous_response_id": first.id}
    if stream:
        *_, last = client.responses.create(**asked, stream=True)
        second = last.response
    else:
        second = client.responses.create(**asked)
    assert second.previous_response_id == first.id
    prompt = f"<|user|>a\n<|assistant|>{SCRIPT}\n<|user|>b\n<|assistant|>"  # instructions are not carried over
    assert second.usage.input_tokens == len(prompt)
    third = client.responses.create(model="scripted", input="c", previous_response_id=second.id)
    prompt += f"{SCRIPT}\n<|user|>c\n<|assistant|>"
    assert third.usage.input_tokens == len(prompt)
    again = client.responses.create(model="scripted", input="c", previous_response_id=second.id)  # a branch
    assert again.usage.input_tokens == len(prompt)
    counted = client.responses.input_tokens.count(model="scripted", input="c", previous_response_id=second.id)
    assert counted.input_tokens == len(prompt)


def test_calls_and_thoughts_go_on(start, replying):
    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    template = (
        "{% for m in messages %}<|{{ m.role }}|>"
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
        "{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}{% if tools %}{% endif %}"
    )
    engine = replying(template, f"<think>hm</think>{call}", "done", reasoning_parser="qwen3", tool_call_parser="hermes")
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    with start(engine, response_store=STORE).openai() as client:
        first = client.responses.create(model="scripted", input="a", tools=tools)
        assert [item.type for item in first.output] == ["reasoning", "function_call"]
        result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "7"}
        second = client.responses.create(
            model="scripted", input=[result], tools=tools, previous_response_id=first.id, include=[]
        )
    assert second.output_text == "done"
    prompt = engine.prompts[-1]
    assert prompt.startswith("<|user|>a<|assistant|><think>hm</think>") and '"name": "f"' in prompt
    assert prompt.endswith("<|tool|>7<|assistant|>")


def test_references_to_items(start, replying):
    """As the AI SDK goes on, which takes it that the server keeps each item; a reference is read as the item itself."""
    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    engine = replying(QWEN_TOOLS, f"<think>\nhm\n</think>\n\n{call}", "done", "done", "done")
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    ask = {"role": "user", "content": "a"}
    with start(engine, response_store=STORE, max_body_bytes=4096).openai() as client:
        first = client.responses.create(model="scripted", input=[ask], tools=tools)
        refs = [{"type": "item_reference", "id": item.id} for item in first.output]
        result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "7"}
        asked = {"model": "scripted", "tools": tools}
        assert client.responses.create(**asked, input=[ask, *refs, result]).output_text == "done"
        second = client.responses.create(**asked, input=[ask, *(item.to_dict() for item in first.output), result])
        assert engine.prompts[-1] == engine.prompts[-2] and "hm" in engine.prompts[-1]
        counted = client.responses.input_tokens.count(**asked, input=[ask, *refs, result])
        assert counted.input_tokens == second.usage.input_tokens
        with pytest.raises(openai.APIStatusError, match="too long together") as error:
            client.responses.create(**asked, input=refs * 20)
        assert error.value.status_code == 413
        client.responses.delete(first.id)
        for name in (first.output[1].id, "fc_1", f"fc_{second.id.removeprefix('resp-')}_9"):
            wrong = {"type": "item_reference", "id": name}
            with pytest.raises(openai.BadRequestError, match=rf"input\.1: there is no item '{name}'") as error:
                client.responses.create(**asked, input=[ask, wrong])
            assert (error.value.code, error.value.param) == ("item_not_found", "input")


def test_retrieved_and_deleted(client, storing):
    answer = client.responses.create(model="scripted", input="a", metadata={"k": "v"})
    assert client.responses.retrieve(answer.id) == answer
    with storing.http() as http:
        Response.model_validate(http.get(f"/v1/responses/{answer.id}").json(), strict=True)
        assert http.get(f"/v1/responses/{answer.id}", params={"stream": "true"}).status_code == 400
        assert http.delete(f"/v1/responses/{answer.id}").json() == {
            "id": answer.id,
            "object": "response",
            "deleted": True,
        }
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="no response"):
            call(answer.id)
    with pytest.raises(openai.BadRequestError, match="no response") as raised:
        client.responses.create(model="scripted", input="b", previous_response_id=answer.id)
    assert (raised.value.param, raised.value.code) == ("previous_response_id", "previous_response_not_found")


def test_not_to_be_stored(client):
    answer = client.responses.create(model="scripted", input="a", store=False)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


@pytest.mark.parametrize("wrong", [{"previous_response_id": 3}, {"input": 7}, {"previous_response_id": []}])
def test_wrong_fields_are_told(storing, wrong):
    with storing.http() as http:
        answer = http.post("/v1/responses", json={"input": "a", "previous_response_id": "resp-none"} | wrong)
    assert answer.status_code == 400 and answer.json()["error"]["param"] in wrong, answer.text


def test_background(client, storing):
    answer = client.responses.create(model="scripted", input="hold", background=True)
    assert (answer.status, answer.background, answer.output) == ("in_progress", True, [])
    storing.engine.wait_held()
    assert client.responses.retrieve(answer.id).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="has no answer to go on from: it is in_progress"):
        client.responses.create(model="scripted", input="b", previous_response_id=answer.id)
    storing.engine.released.set()
    whole = ended(client, answer)
    assert (whole.status, whole.output_text) == ("completed", SCRIPT) and whole.usage.output_tokens == 21
    assert client.responses.cancel(answer.id) == whole  # it came too late
    later = client.responses.create(model="scripted", input="b", previous_response_id=answer.id)
    assert later.usage.input_tokens == len(f"<|user|>hold\n<|assistant|>{SCRIPT}\n<|user|>b\n<|assistant|>")
    storing.engine.released.clear()


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_background_is_ended(start, scripted, end):
    engine = scripted()
    with start(engine, response_store=STORE).openai() as client:
        answer = client.responses.create(model="scripted", input="hold", background=True)
        engine.wait_held()
        if end == "cancel":
            assert client.responses.cancel(answer.id).status == "cancelled"
            assert client.responses.retrieve(answer.id).status == "cancelled"
            assert client.responses.cancel(answer.id).status == "cancelled"
        else:
            client.responses.delete(answer.id)
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(answer.id)
        engine.wait_aborted()


def test_background_that_fails(start, scripted):
    with start(scripted(), response_store=STORE).openai() as client:
        answer = ended(client, client.responses.create(model="scripted", input="crash", background=True))
    assert answer.status == "failed" and "step 2 failed" in answer.error.message


def test_background_ends_at_the_timeout(start, scripted):
    with start(scripted(), response_store=STORE, request_timeout_s=0.2).openai() as client:
        answer = ended(client, client.responses.create(model="scripted", input="hold", background=True))
    assert answer.status == "failed" and "request-timeout" in answer.error.message


def test_a_drain_waits_for_the_background(start, scripted):
    engine = scripted()
    server = start(engine, response_store=STORE)
    with server.openai() as client:
        client.responses.create(model="scripted", input="hold", background=True)
        engine.wait_held()
        server.signal()
        time.sleep(0.1)
        assert not engine.ended and not engine.aborted
        engine.released.set()
        server.join()
    assert len(engine.ended) == 1


@pytest.mark.parametrize("fields", [{"store": False}, {"stream": True}])
def test_background_that_nobody_could_get(storing, fields):
    with storing.http() as http:
        answer = http.post("/v1/responses", json={"input": "a", "background": True} | fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "background"


def test_only_the_background_can_be_cancelled(client):
    answer = client.responses.create(model="scripted", input="a")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(answer.id)


def test_the_oldest_make_room(start, scripted):
    engine = scripted()
    with start(engine, response_store=8000).openai() as client:
        held = client.responses.create(model="scripted", input="hold", background=True)
        engine.wait_held()
        made = [client.responses.create(model="scripted", input="a" * 100) for _ in range(12)]
        found = []
        for answer in made:
            try:
                found.append(client.responses.retrieve(answer.id) == answer)
            except openai.NotFoundError:
                found.append(False)
        assert found == sorted(found) and 2 <= sum(found) <= 6, found  # the newest ones
        assert client.responses.retrieve(held.id).status == "in_progress"  # not those that are computed
        with pytest.raises(openai.RateLimitError, match="--response-store"):
            for _ in range(30):
                client.responses.create(model="scripted", input="hold", background=True)
        engine.released.set()


def test_what_is_too_large_is_not_stored(start, scripted):
    with start(scripted(), response_store=500).openai() as client:
        answer = client.responses.create(model="scripted", input="a")
        assert answer.output_text == SCRIPT
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(answer.id)


def test_a_conversation_has_the_bound_of_a_body(start, scripted):
    with start(scripted(), response_store=STORE, max_body_bytes=700).openai() as client:
        first = client.responses.create(model="scripted", input="a" * 300)
        with pytest.raises(openai.APIStatusError, match="longer than 700 bytes") as raised:
            client.responses.create(model="scripted", input="b" * 300, previous_response_id=first.id)
    assert raised.value.status_code == 413 and raised.value.param == "previous_response_id"
