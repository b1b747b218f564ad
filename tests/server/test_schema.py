"""From body bytes to models: what is taken, what is refused, and under which name."""

import json

import pytest

from lullm.server.anthropic.body import MessagesBody
from lullm.server.error import MAX_MESSAGE_CHARS, ApiError
from lullm.server.ollama.schema import OllamaChatBody
from lullm.server.openai.responses.body import ResponsesBody
from lullm.server.openai.schema import ChatBody, CompletionBody, StreamOptions
from lullm.server.wire import INERT, MAX_FIELDS, MISSING, parse_body


def parse(kind, **fields):
    base = {"prompt": "x"} if kind is CompletionBody else {"messages": [{"role": "user", "content": "x"}]}
    return parse_body(kind, json.dumps(base | fields).encode())


def ignoring(kind, **fields):
    """What a body is taken as, and the paths of the fields that were ignored."""
    ignored: list[str] = []
    base = {"prompt": "x"} if kind is CompletionBody else {"messages": [{"role": "user", "content": "x"}]}
    return parse_body(kind, json.dumps(base | fields).encode(), ignored), ignored


def refused(kind, **fields) -> ApiError:
    with pytest.raises(ApiError) as info:
        parse(kind, **fields)
    assert info.value.status == 400
    return info.value


@pytest.mark.parametrize("prompt", ["", "text", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_prompt_forms(prompt):
    assert parse(CompletionBody, prompt=prompt).prompt == prompt


@pytest.mark.parametrize(
    "prompt", [None, [], [[]], [[], [1]], [1, "a"], ["a", [1]], [True], [1.0], 3, {"a": 1}, [None]]
)
def test_prompt_of_a_wrong_form(prompt):
    error = refused(CompletionBody, prompt=prompt)
    assert error.param == "prompt" and "list of token ids" in str(error)


def test_too_many_prompts():
    assert "at most 4096" in str(refused(CompletionBody, prompt=["a"] * 4097))


@pytest.mark.parametrize("field", sorted(INERT))
@pytest.mark.parametrize("kind", [CompletionBody, ChatBody])
def test_inert_fields_pass(kind, field):
    if field in kind.model_fields:
        return
    assert parse(kind, **{field: {"any": "thing"}}) == parse(kind)


@pytest.mark.parametrize("kind", [CompletionBody, ChatBody])
def test_missing_machinery_passes_only_when_it_asks_for_nothing(kind):
    for field, harmless in MISSING.items():
        if field in kind.model_fields:
            continue
        for value in harmless:
            assert parse(kind, **{field: value}) == parse(kind)
        error = refused(kind, **{field: {"something": "else"}})
        assert error.param == field and error.code == "unsupported_field" and field in str(error)


def test_padding_of_events_has_no_effect():
    assert ignoring(ChatBody, stream=True, stream_options={"include_obfuscation": True})[1] == []


@pytest.mark.parametrize("ignored", [None, []])
def test_what_newer_fields_of_responses_ask_for(ignored):
    """Their defaults ask for nothing; another wish is refused by name, whatever is done with unknown fields."""
    harmless = {"input": "x", "reasoning": {"mode": "standard", "context": "auto"}, "text": {"verbosity": "medium"}}
    parse_body(ResponsesBody, json.dumps(harmless).encode(), ignored)
    wishes = {"reasoning": {"mode": "pro"}}, {"reasoning": {"context": "all_turns"}}, {"text": {"verbosity": "low"}}
    for fields in wishes:
        with pytest.raises(ApiError, match="is not supported by this server"):
            parse_body(ResponsesBody, json.dumps({"input": "x"} | fields).encode(), ignored)


def test_null_is_left_out_where_it_is_no_value():
    body = parse(OllamaChatBody, model="m", stream=None, think=None, options=None)
    assert body.stream is True and body.think is None
    assert parse(CompletionBody, max_tokens=None).model_fields_set >= {"max_tokens"}, "here it says: to the end"
    assert parse(OllamaChatBody, model="m", think="max").think == "max"


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"content": None, "refusal": "no"}, "no"),
        ({"content": None, "reasoning": "hm"}, ""),
        ({"content": [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "a"}]}, "no\na"),
        ({"content": "", "tool_calls": [{"function": {"name": "f"}}]}, ""),
        ({"content": None, "tool_calls": [{"function": {"name": "f"}}]}, None),
    ],
)
def test_what_an_answer_had_goes_back(message, content):
    [taken] = parse(ChatBody, messages=[{"role": "assistant", "annotations": [], "audio": None, **message}]).messages
    assert taken.for_template()["content"] == content


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("content", [None, []])
def test_a_message_without_content(role, content):
    assert "content is required" in str(refused(ChatBody, messages=[{"role": role, "content": content}]))
    assert "belongs to" in str(refused(ChatBody, messages=[{"role": "user", "content": "x", "refusal": "no"}]))


def test_zero_is_not_false():
    assert refused(CompletionBody, use_beam_search=0).param == "use_beam_search"


def test_a_refused_field_names_what_to_give():
    assert str(refused(CompletionBody, use_beam_search=True)).endswith("; give beam_width, the number of beams")
    assert str(refused(ChatBody, chat_template="x")).endswith("; start it with --chat-template")


@pytest.mark.parametrize("value", [None, 1, "x"])
def test_unknown_field(value):
    error = refused(ChatBody, temprature=value)
    assert (error.param, error.code) == ("temprature", "unknown_field")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "0.5"),
        ("temperature", True),
        ("n", 1.5),
        ("n", "2"),
        ("stream", "yes"),
        ("stream", 1),
        ("stop", 3),
        ("stop", ["a", 1]),
        ("seed", [1]),
        ("logit_bias", [1]),
        ("stop_token_ids", ["1"]),
        ("top_k", {}),
        ("model", 3),
        ("ignore_eos", "no"),
    ],
)
def test_wrong_type_names_the_field(field, value):
    for kind in (CompletionBody, ChatBody):
        assert refused(kind, **{field: value}).param == field


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"nonsense", b'{"prompt": "\\ud800"}', b"\xff\xfe", b'{"prompt": NaN}', b"[" * 100_000]
)
def test_invalid_json(raw):
    with pytest.raises(ApiError) as info:
        parse_body(CompletionBody, raw)
    assert info.value.status == 400 and info.value.code == "invalid_json"


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"text"'])
def test_json_that_is_no_object(raw):
    with pytest.raises(ApiError, match="must be a JSON object"):
        parse_body(CompletionBody, raw)


def test_required_field():
    with pytest.raises(ApiError, match="prompt is required") as info:
        parse_body(CompletionBody, b"{}")
    assert info.value.param == "prompt"


def test_number_too_large_for_a_float():
    with pytest.raises(ApiError) as info:
        parse_body(CompletionBody, b'{"prompt": "x", "temperature": 1e999}')
    assert info.value.status == 400


def test_many_unknown_fields_are_one_short_error():
    error = refused(CompletionBody, **{f"field_{i}": 1 for i in range(MAX_FIELDS * 100)})
    assert f"at most {MAX_FIELDS}" in str(error)


def test_long_message_is_cut():
    envelope = ApiError(400, "x" * 10**6).envelope()
    assert len(envelope["error"]["message"]) < MAX_MESSAGE_CHARS + 10


def test_stream_options():
    assert parse(ChatBody, stream=True, stream_options={"include_usage": True}).stream_options == StreamOptions(
        include_usage=True
    )
    assert refused(ChatBody, stream_options={"include_usage": True}).param == "stream_options"
    assert refused(ChatBody, stream=True, stream_options={"x": 1}).param == "stream_options"


def message(**fields):
    body = parse_body(ChatBody, json.dumps({"messages": [fields]}).encode())
    return body.messages[0].for_template()


def test_message_forms():
    assert message(role="user", content="hi") == {"role": "user", "content": "hi"}
    assert message(role="developer", content="hi") == {"role": "system", "content": "hi"}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message(role="user", content=parts)["content"] == "a\nb"
    assert message(role="user", content="hi", name="Ann")["name"] == "Ann"


def test_an_answer_can_be_sent_back_as_it_came():
    fields = {"tool_calls": None, "function_call": None, "refusal": None, "audio": None, "annotations": []}
    assert message(role="assistant", content="hi", **fields) == {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "function", "content": "x", "name": "f"},
        {"role": "user", "content": "x", "tool_call_id": "1"},
        {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": None},
        {"role": "user"},
        {"content": "x"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"uri": "x"}}]},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]},
        {"role": "user", "content": 3},
        "text",
    ],
)
def test_message_of_a_wrong_form(fields):
    with pytest.raises(ApiError) as info:
        parse_body(ChatBody, json.dumps({"messages": [fields]}).encode())
    assert info.value.status == 400 and info.value.param == "messages"


@pytest.mark.parametrize("kind", ["image_embeds", "input_video", "poem"])
def test_other_media_are_refused_in_words(kind):
    part = {"type": kind, kind: {"url": "x"}}
    with pytest.raises(ApiError) as info:
        parse_body(ChatBody, json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode(), [])
    hint = "" if kind == "poem" else " (of all media, only pictures, videos and sounds are taken)"
    taken = "it takes 'text', 'refusal', 'image_url', 'video_url', 'video', 'input_audio', 'audio_url', 'audio'"
    words = f"messages.0.content.0: type '{kind}' is not supported by this server{hint}; {taken}"
    assert info.value.message == words


PART, TURN = {"type": "text", "text": "a"}, {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("kind", "fields", "path"),
    [
        (ChatBody, {"messages": [TURN] * 16385}, "messages"),
        (ChatBody, {"messages": [{"role": "user", "content": [PART] * 16385}]}, "messages.0.content"),
        (ChatBody, {"messages": [TURN], "documents": [{}] * 16385}, "documents"),
        (ResponsesBody, {"input": [TURN] * 16385}, "input"),
        (
            ResponsesBody,
            {"input": [TURN | {"content": [{"type": "input_text", "text": ""}] * 16385}]},
            "input.0.content",
        ),
        (MessagesBody, {"model": "m", "max_tokens": 1, "messages": [TURN] * 16385}, "messages"),
        (
            MessagesBody,
            {"model": "m", "max_tokens": 1, "messages": [TURN | {"content": [PART] * 16385}]},
            "messages.0.content",
        ),
        (OllamaChatBody, {"model": "m", "messages": [TURN] * 16385}, "messages"),
    ],
)
@pytest.mark.parametrize("ignores", [True, False])
def test_lists_are_bounded_before_they_are_read(kind, fields, path, ignores):
    """100,000 items took the event loop 2.5 s."""
    with pytest.raises(ApiError) as info:
        parse_body(kind, json.dumps(fields).encode(), [] if ignores else None)
    assert info.value.message == f"{path}: at most 16384 items may stand in a list, got 16385"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000])
def test_nesting_is_bounded(text):
    with pytest.raises(ApiError, match="recursion limit exceeded"):
        parse_body(ChatBody, text.encode())


def test_unknown_fields_are_ignored_with_a_word():
    body, ignored = ignoring(ChatBody, num_ctx=4096, chat_id="x", temprature=1.0, temperature=0.5)
    assert body == parse(ChatBody, temperature=0.5)
    assert ignored == ["num_ctx", "chat_id", "temprature"]


def test_unknown_fields_are_ignored_at_any_depth():
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    turns = [{"role": "user", "content": [part, part], "id": "1"}, {"role": "assistant", "content": "x", "id": "2"}]
    body, ignored = ignoring(
        ChatBody, messages=turns, response_format={"type": "text", "x": 1}, stream=True, stream_options={"include": 1}
    )
    assert [turn.for_template()["content"] for turn in body.messages] == ["hi\nhi", "x"]
    paths = ["messages[].content[].cache_control", "messages[].id", "response_format.x", "stream_options.include"]
    assert ignored == paths


def test_an_unknown_field_that_asks_for_nothing_is_not_worth_a_word():
    assert ignoring(ChatBody, messages=[{"role": "user", "content": "x", "annotations": []}], chat_id=None)[1] == []


def test_what_a_schema_holds_is_no_field_of_ours():
    schema = {"type": "object", "unknown": {"x": 1}}
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body, ignored = ignoring(ChatBody, response_format=shape)
    assert body.response_format.json_schema.schema_ == schema and ignored == []


def test_wishes_that_cannot_be_met_are_refused_all_the_same():
    for fields in ({"modalities": ["audio"]}, {"messages": [{"role": "user", "content": "x", "audio": {"id": "1"}}]}):
        with pytest.raises(ApiError) as info:
            ignoring(ChatBody, **fields)
        assert info.value.code == "unsupported_field" and info.value.param == next(iter(fields))


def test_too_many_unknown_fields_are_refused_all_the_same():
    with pytest.raises(ApiError, match=f"at most {MAX_FIELDS}"):
        ignoring(CompletionBody, **{f"field_{i}": 1 for i in range(MAX_FIELDS * 100)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"messages": [{"role": "user", "content": 3}]},
            "messages.0.content: Input should be a valid string or a valid list",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text is required"),
        (
            {"messages": [{"role": "user", "content": [3]}]},
            "messages.0.content.0: Input should be a valid dictionary",
        ),
        ({"stop": 3}, "stop: Input should be a valid string or a valid list"),
        ({"stop": ["a", 1]}, "stop.1: Input should be a valid string"),
        ({"early_stopping": "maybe"}, "early_stopping: Input should be a valid boolean or 'never'"),
    ],
)
def test_errors_name_the_field_as_it_was_written(fields, message):
    error = refused(ChatBody, **fields)
    assert str(error).startswith(message) and error.param == next(iter(fields))
    assert " instance of " not in str(error)
