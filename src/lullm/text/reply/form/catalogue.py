"""The forms of replies that well-known models have, by the names that vLLM gives their parsers."""

from lullm.types.reply.form import (
    CallForm,
    HeaderForm,
    KeywordValues,
    NamedBody,
    ObjectBody,
    TaggedValues,
    ThinkingForm,
)

_THINK = ThinkingForm("<think>\n", "\n</think>\n\n")
_PARAMETERS = TaggedValues("<parameter=", ">\n", "\n</parameter>\n")
_PYTHON = KeywordValues("=")

THINKING: dict[str, ThinkingForm] = {
    "qwen3": _THINK,
    "deepseek_r1": ThinkingForm("<think>\n", "\n</think>\n\n", begins_inside=True),
    "glm45": ThinkingForm("<think>", "</think>\n"),
    "mistral": ThinkingForm("[THINK]", "[/THINK]"),
    "gemma4": ThinkingForm("<|channel>thought\n", "<channel|>"),
    "seed_oss": ThinkingForm("<seed:think>", "</seed:think>"),
    "kimi": ThinkingForm("◁think▷", "◁/think▷"),
    "openai_gptoss": ThinkingForm("<|channel|>analysis<|message|>", "<|end|>"),
}
"""The values of `--reasoning-parser`, beside 'none'."""

CALLS: dict[str, CallForm] = {
    "hermes": CallForm("<tool_call>\n", ObjectBody(), "\n</tool_call>", separator="\n"),
    "qwen3_coder": CallForm(
        "<tool_call>\n<function=", NamedBody(">\n", _PARAMETERS), "</function>\n</tool_call>", separator="\n"
    ),
    "llama3_json": CallForm(
        "", ObjectBody(arguments_key="parameters"), "", section_open="<|python_tag|>", separator="; ", is_bare=True
    ),
    "mistral": CallForm("[TOOL_CALLS]", NamedBody("[ARGS]", cut="[CALL_ID]"), "", has_short_ids=True),
    "mistral_list": CallForm(
        "", ObjectBody(), "", section_open="[TOOL_CALLS] [", section_close="]", separator=", ", has_short_ids=True
    ),
    "functiongemma": CallForm(
        "<start_function_call>call:", NamedBody("{", KeywordValues(":", "<escape>")), "}<end_function_call>"
    ),
    "gemma4": CallForm("<|tool_call>call:", NamedBody("{", KeywordValues(":", '<|"|>')), "}<tool_call|>"),
    "openai": CallForm(
        "<|channel|>commentary to=functions.",
        NamedBody(" <|constrain|>json<|message|>"),
        "<|call|>",
        separator="<|start|>assistant",
    ),
    "deepseek_v3": CallForm(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        NamedBody("\n```json\n"),
        "\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "\n",
    ),
    "deepseek_v31": CallForm(
        "<｜tool▁call▁begin｜>",
        NamedBody("<｜tool▁sep｜>"),
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "glm45": CallForm(
        "<tool_call>",
        NamedBody("\n", TaggedValues("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")),
        "</tool_call>",
        separator="\n",
    ),
    "kimi_k2": CallForm(
        "<|tool_call_begin|>functions.",
        NamedBody(":0<|tool_call_argument_begin|>", cut=":"),
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "minimax_m2": CallForm(
        '<invoke name="',
        NamedBody('">\n', TaggedValues('<parameter name="', '">', "</parameter>\n")),
        "</invoke>",
        "<minimax:tool_call>\n",
        "\n</minimax:tool_call>",
        "\n",
    ),
    "granite": CallForm("", ObjectBody(), "", "<|tool_call|>[", "]", ", "),
    "phi4_mini_json": CallForm("", ObjectBody(), "", "functools[", "]", ", "),
    "nemotron_json": CallForm("", ObjectBody(), "", "<TOOLCALL>[", "]</TOOLCALL>", ", "),
    "lfm2": CallForm("", NamedBody("(", _PYTHON), ")", "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "pythonic": CallForm("", NamedBody("(", _PYTHON), ")", "[", "]", ", ", is_bare=True),
}
"""The values of `--tool-call-parser`, beside 'none'."""

HARMONY = HeaderForm(
    starts=("<|start|>", "<|channel|>"),
    end="<|message|>",
    stops=("<|end|>", "<|return|>", "<|call|>"),
    thinking_channel="analysis",
    channel_mark="<|channel|>",
    recipient_mark="to=functions.",
    text_open="<|channel|>final<|message|>",
    next_open="<|start|>assistant",
)
"""The headers of OpenAI's open models."""
