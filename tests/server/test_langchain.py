"""LangChain's OpenAI client: tools that are bound, their results, and outputs of a form."""

import json

import pytest
from kit.template.styles import QWEN_TOOLS
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr


class Pet(BaseModel):
    """An animal."""

    name: str
    age: int


@tool
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


PET = {"name": "Rex", "age": 3}
CALL = '<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call>'
PET_CALL = f'<tool_call>\n{{"name": "Pet", "arguments": {json.dumps(PET)}}}\n</tool_call>'


@pytest.fixture
def model(start, replying):
    def connected(*replies: str) -> ChatOpenAI:
        server = start(replying(QWEN_TOOLS, *replies))
        options = {"model": "scripted", "max_retries": 0, "timeout": 20, "stream_usage": True}
        return ChatOpenAI(base_url=f"{server.url}/v1", api_key=SecretStr("none"), **options)

    return connected


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("choice", [None, "any", "add"])
def test_bind_tools(model, streams, choice):
    """The call comes back as LangChain's, and the conversation goes on with the tool's result."""
    llm = model(CALL, "It is 3.")
    bound = llm.bind_tools([add], tool_choice=choice)
    messages = [HumanMessage("1 + 2?")]
    if streams:
        first, *others = bound.stream(messages)
        answer = sum(others, first)
    else:
        answer = bound.invoke(messages)
    [call] = answer.tool_calls
    assert (call["name"], call["args"]) == ("add", {"x": 1, "y": 2}) and answer.usage_metadata["output_tokens"] > 0
    result = ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
    assert llm.bind_tools([add]).invoke([*messages, answer, result]).content == "It is 3."


@pytest.mark.parametrize(
    ("method", "reply"),
    [("json_schema", json.dumps(PET)), ("function_calling", PET_CALL), ("json_mode", json.dumps(PET))],
)
def test_with_structured_output(model, method, reply):
    found = model(reply).with_structured_output(Pet, method=method).invoke("Say a pet as JSON.")
    assert found == Pet(**PET)
