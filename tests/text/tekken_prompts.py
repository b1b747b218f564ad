"""Writes tests/text/tekken_prompts.json: prompts of mistral-common for conversations, by version of tekken.json.

    pip install mistral-common==1.13.1 && python tests/text/tekken_prompts.py

mistral-common is no dependency of the tests: they read the file.
"""

import base64
import json
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
LATER = {
    7: ("[AUDIO]", "[BEGIN_AUDIO]"),
    11: ("[ARGS]", "[CALL_ID]"),
    13: ("[THINK]", "[/THINK]"),
    15: ("[MODEL_SETTINGS]", "[/MODEL_SETTINGS]"),
}
VERSIONS = (3, 7, 11, 13, 15)
EFFORT = {"reasoning_effort": {"type": "enum", "values": ["none", "high"], "default": "none", "accepts_none": True}}
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather, in °C",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}  # fmt: skip
PLAIN = {"type": "function", "function": {"name": "noon", "description": "", "parameters": {}}}


def call(number, name="weather", arguments='{"town": "Zürich"}'):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def answer(text):
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
CALLED = [
    SYSTEM,
    user("How warm is it?"),
    {"role": "assistant", "content": "", "tool_calls": [call(1), call(2, "noon", "{}")]},
    {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": '{"celsius": 21.5}'},
    {"role": "tool", "tool_call_id": "call00002", "name": "noon", "content": "It is noon."},
]
CONVERSATIONS = {
    "one": ([user("Hello!")], []),
    "system": ([SYSTEM, user("Hi"), answer("Good day."), user("Bye")], []),
    "spaces": ([user("  a  \n"), answer(" b  "), user("c\n\n ")], []),
    "two of a role": ([user("a"), user("b"), answer("c"), answer("d"), user("e")], []),
    "tools": ([SYSTEM, user("Hi"), answer("Good day."), user("How warm?")], [WEATHER, PLAIN]),
    "called": (CALLED, [WEATHER, PLAIN]),
    "answered": ([*CALLED, answer("21.5 °C."), user("Thanks")], [WEATHER]),
}


def tekken(number):
    """A small vocabulary."""
    words = [bytes([byte]) for byte in range(256)] + [b" a", b"th", b" th", b"the", b" the"]
    names = [*SPECIAL, *(name for first, later in LATER.items() if first <= number for name in later)]
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None} for rank, word in
             enumerate(words)]  # fmt: skip
    special = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    config = {"pattern": PATTERN, "num_vocab_tokens": len(vocab), "default_vocab_size": len(words) + 40,
              "default_num_special_tokens": 40, "version": f"v{number}"}  # fmt: skip
    settings = {"model_settings_builder": EFFORT} if number >= 15 else {}
    return {"config": config, "vocab": vocab, "special_tokens": special, **settings}


def write():
    import tempfile

    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    found = {}
    for number in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tekken.json"
            path.write_text(json.dumps(tekken(number)))
            tokenizer = MistralTokenizer.from_file(str(path))
        found[number] = {}
        for name, (messages, tools) in CONVERSATIONS.items():
            try:
                request = ChatCompletionRequest.from_openai(messages=messages, tools=tools or None)
                found[number][name] = tokenizer.encode_chat_completion(request).tokens
            except Exception as error:
                print(number, name, repr(error)[:300])
    FILE.write_text(json.dumps(found))


if __name__ == "__main__":
    write()
