"""Replies as well-known models write them, and what they say. Written for these tests, in the models' styles."""

from dataclasses import dataclass, field

from lullm.text.reply.form.catalogue import CALLS, HARMONY, THINKING
from lullm.types.reply.form import ReplyForm
from lullm.types.reply.rules import ReplyRules, ThinkingTokens, Tool

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"type": ["string", "null"]},
        "where": {"type": "object"},
        "hours": {"type": "array"},
        "exact": {"type": "boolean"},
    },
}
TOOLS = (Tool("get_weather", WEATHER), Tool("now"))
PARIS = ("get_weather", {"city": 'Paris "P" \u00e9\U0001f600\n<b>', "days": 3, "exact": True, "hours": [1, 2.5]})
NOW = ("now", {})


@dataclass(frozen=True)
class Sample:
    """A reply, and what it says. `form`: names of the forms of calls and of thoughts."""

    name: str
    form: tuple[str, str]
    raw: str
    text: str = ""
    thinking: str = ""
    calls: tuple = ()
    begins_inside: bool = False
    tools: tuple = TOOLS
    options: dict = field(default_factory=dict)

    @property
    def rules(self) -> ReplyRules:
        calls, thinking = self.form
        form = ReplyForm(THINKING.get(thinking), CALLS.get(calls), HARMONY if calls == "openai" else None)
        inside = ThinkingTokens((0,), (1,), self.begins_inside) if form.thinking else None
        return ReplyRules(form, self.tools, thinking=inside)


JSON = '{"city": "Paris \\"P\\" \u00e9\\ud83d\\ude00\\n<b>", "days": 3, "exact": true, "hours": [1, 2.5]}'
CITY = 'Paris "P" \u00e9\U0001f600\n<b>'

SAMPLES = [
    Sample("plain", ("hermes", "qwen3"), "Just text, 1 < 2.\n", "Just text, 1 < 2.\n"),
    Sample("empty", ("hermes", "qwen3"), ""),
    Sample("thought", ("hermes", "qwen3"), "<think>\nHm <b>.\n</think>\n\nYes\n\nno", "Yes\n\nno", "Hm <b>."),
    Sample("no thought", ("hermes", "qwen3"), "<think>\n\n</think>\n\nYes", "Yes"),
    Sample("cut thought", ("hermes", "qwen3"), "<think>\nHm </thi", "", "Hm </thi"),
    Sample("opened before", ("hermes", "qwen3"), "Hm\n</think>\nYes", "Yes", "Hm", begins_inside=True),
    Sample("opened twice", ("hermes", "deepseek_r1"), "<think>Hm</think>Yes", "Yes", "Hm"),
    Sample("about thoughts", ("hermes", "qwen3"), "The tag <think> opens.", "The tag <think> opens."),
    Sample(
        "hermes",
        ("hermes", "qwen3"),
        '<think>\nweather\n</think>\n\nI look.\n<tool_call>\n{"name": "get_weather", "arguments": '
        + JSON
        + '}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "I look.",
        "weather",
        (PARIS, NOW),
    ),
    Sample(
        "hermes, arguments first, unspaced",
        ("hermes", "none"),
        '<tool_call>{"id":7,"arguments":{"days":3},"name":"get_weather"}</tool_call> done',
        "done",
        calls=(("get_weather", {"days": 3}),),
    ),
    Sample(
        "hermes, arguments as text and none",
        ("hermes", "none"),
        '<tool_call>{"name":"now"}</tool_call>'
        '<tool_call>{"name":"get_weather","arguments":"{\\"days\\": 3}"}</tool_call>',
        calls=(NOW, ("get_weather", {"days": 3})),
    ),
    Sample(
        "hermes, no call",
        ("hermes", "none"),
        "Write <tool_call> and {then} </tool_call>, <tool_c",
        "Write <tool_call> and {then} </tool_call>, <tool_c",
    ),
    Sample(
        "hermes, other JSON",
        ("hermes", "none"),
        '<tool_call>{"title": [1, {"name": "x"}]}</tool_call>',
        '<tool_call>{"title": [1, {"name": "x"}]}</tool_call>',
    ),
    Sample(
        "hermes, cut before the name", ("hermes", "none"), 'A <tool_call>\n{"name": "no', 'A <tool_call>\n{"name": "no'
    ),
    Sample("no tools", ("hermes", "none"), "<tool_call>\n{}", "<tool_call>\n{}", tools=()),
    Sample(
        "qwen3_coder",
        ("qwen3_coder", "none"),
        f"Go.\n<tool_call>\n<function=get_weather>\n<parameter=city>\n{CITY}\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n<parameter=exact>\ntrue\n</parameter>\n<parameter=hours>\n[1, 2.5]\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "Go.",
        calls=(PARIS, NOW),
    ),
    Sample(
        "qwen3_coder, a mark left out, odd values",
        ("qwen3_coder", "none"),
        "<function=get_weather>\n<parameter=city>\n\n two\nlines \n\n</parameter>\n<parameter=units>\nnull\n"
        "</parameter>\n<parameter=days>\nmany\n</parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>",
        calls=(("get_weather", {"city": "\n two\nlines \n", "units": None, "days": "many", "other": "7"}),),
    ),
    Sample(
        "qwen3_coder, cut in a value",
        ("qwen3_coder", "none"),
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis</par",
        calls=(("get_weather", {"city": "Paris</par"}),),
    ),
    Sample(
        "glm",
        ("glm45", "glm45"),
        "\n<think>so</think>\nGo.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        f"<arg_value>{CITY}</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>exact</arg_key>\n"
        "<arg_value>true</arg_value>\n<arg_key>hours</arg_key><arg_value>[1, 2.5]</arg_value></tool_call>\n"
        "<tool_call>now\n</tool_call>",
        "Go.",
        "so",
        (PARIS, NOW),
    ),
    Sample(
        "minimax",
        ("minimax_m2", "qwen3"),
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">'
        f'{CITY}</parameter>\n<parameter name="days">3</parameter>\n<parameter name="exact">true</parameter>\n'
        '<parameter name="hours">[1, 2.5]</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n'
        "</minimax:tool_call> end",
        "end",
        calls=(PARIS, NOW),
    ),
    Sample(
        "llama3_json",
        ("llama3_json", "none"),
        '{"name": "get_weather", "parameters": ' + JSON + '}; {"name": "now", "parameters": {}}',
        calls=(PARIS, NOW),
    ),
    Sample(
        "llama3_json, marked",
        ("llama3_json", "none"),
        '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}',
        calls=(NOW,),
    ),
    Sample("llama3_json, other JSON", ("llama3_json", "none"), ' {"name": "Ann"}\n', ' {"name": "Ann"}\n'),
    Sample("llama3_json, later", ("llama3_json", "none"), 'x {"name": "now"}', 'x {"name": "now"}'),
    Sample(
        "mistral",
        ("mistral", "mistral"),
        "[THINK]so[/THINK]Go.[TOOL_CALLS]get_weather[ARGS]" + JSON + "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}",
        "Go.",
        "so",
        (PARIS, NOW),
    ),
    Sample(
        "mistral_list",
        ("mistral_list", "none"),
        'Go. [TOOL_CALLS] [{"name": "get_weather", "arguments": '
        + JSON
        + '}, {"name": "now", "arguments": {}, "id": "a"}]',
        "Go.",
        calls=(PARIS, NOW),
    ),
    Sample(
        "functiongemma",
        ("functiongemma", "none"),
        "<start_function_call>call:get_weather{city:<escape>" + CITY + "<escape>,days:3,exact:true,hours:[1,2.5],"
        "where:{at:<escape>x, {y}<escape>,n:{}}}<end_function_call><start_function_call>call:now{}<end_function_call>",
        calls=((PARIS[0], PARIS[1] | {"where": {"at": "x, {y}", "n": {}}}), NOW),
    ),
    Sample(
        "gemma4",
        ("gemma4", "gemma4"),
        '<|channel>thought\nso<channel|>Go.<|tool_call>call:get_weather{city:<|"|>'
        + CITY
        + '<|"|>,days:3,exact:true,hours:[1,2.5]}<tool_call|><|tool_call>call:now{}<tool_call|>',
        "Go.",
        "so",
        (PARIS, NOW),
    ),
    Sample(
        "harmony",
        ("openai", "openai_gptoss"),
        "<|channel|>analysis<|message|>so <b><|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + JSON,
        "I look.",
        "so <b>",
        (PARIS,),
    ),
    Sample(
        "harmony, recipient first",
        ("openai", "openai_gptoss"),
        " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        calls=(NOW,),
    ),
    Sample(
        "harmony, answer",
        ("openai", "openai_gptoss"),
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>Yes. <|x",
        "Yes. <|x",
        "a",
    ),
    Sample("harmony, no header", ("openai", "openai_gptoss"), "no header <|chan", "no header <|chan"),
    Sample(
        "deepseek_v3",
        ("deepseek_v3", "qwen3"),
        "Go.<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep"
        "\uff5c>get_weather\n```json\n"
        + JSON
        + "\n```<\uff5ctool\u2581call\u2581end\uff5c>\n<\uff5ctool\u2581call\u2581"
        "begin\uff5c>function<\uff5ctool\u2581sep\uff5c>now\n```json\n{}\n```<\uff5ctool\u2581call\u2581end\uff5c>"
        "<\uff5ctool\u2581calls\u2581end\uff5c>",
        "Go.",
        calls=(PARIS, NOW),
    ),
    Sample(
        "deepseek_v31",
        ("deepseek_v31", "qwen3"),
        "so</think>Go.<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>get_weather<\uff5ctool"
        "\u2581sep\uff5c>"
        + JSON
        + "<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>now<\uff5c"
        "tool\u2581sep\uff5c>{}<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>",
        "Go.",
        "so",
        (PARIS, NOW),
        begins_inside=True,
    ),
    Sample(
        "kimi_k2",
        ("kimi_k2", "none"),
        "Go.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        + JSON
        + "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "Go.",
        calls=(PARIS, NOW),
    ),
    Sample(
        "nemotron",
        ("nemotron_json", "none"),
        '<TOOLCALL>[{"name": "get_weather", "arguments": ' + JSON + '}, {"name": "now", "arguments": {}}]</TOOLCALL>',
        calls=(PARIS, NOW),
    ),
    Sample(
        "lfm2",
        ("lfm2", "none"),
        "Go.<|tool_call_start|>[get_weather(city='Paris \"P\" \u00e9\U0001f600\\n<b>', days=3, exact=True, "
        'hours=[1, 2.5], where={"a": (1, ")")}), now()]<|tool_call_end|>Done.',
        "Go.Done.",
        calls=((PARIS[0], PARIS[1] | {"where": {"a": [1, ")"]}}), NOW),
    ),
    Sample("pythonic", ("pythonic", "none"), "[now(), get_weather(days=3)]", calls=(NOW, ("get_weather", {"days": 3}))),
    Sample("pythonic, a list", ("pythonic", "none"), "[1, 2] is a list", "[1, 2] is a list"),
    Sample("pythonic, another function", ("pythonic", "none"), "[print(1)]", "[print(1)]"),
]
