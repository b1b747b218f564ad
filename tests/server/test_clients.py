"""What the official clients of OpenAI and Anthropic do beyond single calls, with the bundled model behind the server.

`parse` and the helpers of streams check every event and every field, and raise where one is missing or out of order.
"""

import asyncio
from typing import Literal

import openai
import pytest
from anthropic import Anthropic
from pydantic import BaseModel, ConfigDict, Field

from lullm import AsyncLLMEngine, EngineConfig

ASK = [{"role": "user", "content": "Which animal is it?"}]
NUM_STREAMS = 50


class Pet(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: str = Field(max_length=8)
    legs: int = Field(ge=0, le=8)


class Choice(BaseModel):
    """Without bounds: Anthropic's client sends none."""

    kind: Literal["cat", "dog"]
    legs: Literal[2, 4]


PET_TOOL = {"type": "function", "name": "pet", "description": "Names one.", "parameters": Pet.model_json_schema()}


@pytest.fixture(scope="module")
def server(start_for_module):
    return start_for_module(AsyncLLMEngine(EngineConfig(max_model_len=512, tool_call_parser="hermes")))


@pytest.fixture(scope="module")
def client(server):
    with server.openai() as client:
        yield client


@pytest.fixture(scope="module")
def claude(server):
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_chat_into_a_class(client):
    whole = client.chat.completions.parse(model="demo", messages=ASK, response_format=Pet, max_tokens=100)
    with client.chat.completions.stream(model="demo", messages=ASK, response_format=Pet, max_tokens=100) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(whole.choices[0].message.parsed, Pet)
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


def test_chat_into_arguments(client):
    ask = {"model": "demo", "messages": ASK, "tools": [openai.pydantic_function_tool(Pet)], "tool_choice": "required"}
    whole = client.chat.completions.parse(**ask, max_tokens=100)
    with client.chat.completions.stream(**ask, max_tokens=100, stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    [call] = whole.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Pet)
    assert streamed.choices[0].message.tool_calls[0].function.parsed_arguments == call.function.parsed_arguments
    assert streamed.usage == whole.usage


def test_responses_into_a_class(client):
    ask = {"model": "demo", "input": "a pet", "text_format": Pet, "max_output_tokens": 100}
    whole = client.responses.parse(**ask)
    with client.responses.stream(**ask) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        streamed = stream.get_final_response()
    assert isinstance(whole.output_parsed, Pet) and streamed.output_parsed == whole.output_parsed
    assert streamed.output_text == text == whole.output_text


def test_responses_with_a_tool_and_its_result(client):
    ask = {"model": "demo", "tools": [PET_TOOL], "max_output_tokens": 100}
    with client.responses.stream(**ask, input="a pet", tool_choice={"type": "function", "name": "pet"}) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    [call] = first.output
    Pet.model_validate_json(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sold"}
    items = [{"role": "user", "content": "a pet"}, call.model_dump(), result]
    assert client.responses.create(**ask, input=items, tool_choice="none").output_text


def test_many_streams_of_one_client(server):
    """All at once on one event loop: every stream is whole, and says what it says alone."""

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, seed) for seed in [*range(NUM_STREAMS), 0]))

    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        options = {"stream_options": {"include_usage": True}, "extra_body": {"ignore_eos": True}}
        stream = await client.chat.completions.create(
            model="demo", messages=ASK, max_tokens=24, temperature=1.5, seed=seed, stream=True, **options
        )
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        assert chunk.usage.completion_tokens == 24
        return text

    *texts, again = asyncio.run(ask_all())
    assert texts[0] == again and len(set(texts)) > 5


def test_claude_into_a_class(claude):
    ask = {"model": "demo", "max_tokens": 100, "messages": ASK, "output_format": Choice}
    parsed = claude.messages.parse(**ask).parsed_output
    assert isinstance(parsed, Choice) and claude.beta.messages.parse(**ask).parsed_output == parsed


def test_claude_with_a_tool_and_its_result(claude):
    tool = {"name": "pet", "description": "Names one.", "input_schema": Pet.model_json_schema()}
    ask = {"model": "demo", "max_tokens": 100, "tools": [tool]}
    with claude.messages.stream(**ask, messages=ASK, tool_choice={"type": "tool", "name": "pet"}) as stream:
        first = stream.get_final_message()
    [call] = first.content
    assert first.stop_reason == "tool_use" and Pet.model_validate(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sold"}]}
    said = [*ASK, {"role": "assistant", "content": [call.model_dump()]}, {"role": "user", "content": [result]}]
    with claude.messages.stream(**ask | {"max_tokens": 20}, messages=said) as stream:
        text = "".join(stream.text_stream)
    assert text and stream.get_final_message().content[0].text == text


@pytest.mark.parametrize(("call", "elsewhere"), [("files", "lullm run-batch"), ("images", "GET /docs")])
def test_what_is_not_here_says_where_to_look(client, call, elsewhere):
    with pytest.raises(openai.NotFoundError, match=elsewhere):
        client.files.list() if call == "files" else client.images.generate(prompt="x")
