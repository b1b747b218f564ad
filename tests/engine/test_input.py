"""InputProcessor: the one door. Every form of a prompt, what is refused and by which field and code, how long it is."""

import pickle
import re

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from lullm import SamplingParams
from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.engine.caller.length import num_chars
from lullm.engine.input.processor import InputProcessor
from lullm.errors import InvalidRequestError
from lullm.text.chat_template import ChatTemplate
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import CallerRequest, Conversation
from lullm.types.sampling_params import OutputKind

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'wizard' %}{{ raise_exception('no wizards') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}{{ mood }}{% if add_generation_prompt %}<answer>{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]
PARAMS = SamplingParams(temperature=0.0)


def byte_tokenizer(template: str | None) -> Tokenizer:
    """One token per byte, and <s> before every plain text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return Tokenizer(backend, {"bos_token": "<s>"}, ChatTemplate(template, {}) if template else None)


def make_door(template: str | None = TEMPLATE, policy: str = "priority") -> InputProcessor:
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 8, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    model = ModelConfig.from_dict(config)
    return InputProcessor(
        EngineConfig(max_model_len=64, max_logprobs=5, scheduling_policy=policy).resolve(model),
        model,
        byte_tokenizer(template),
        (7,),
    )


@pytest.fixture(scope="module")
def door() -> InputProcessor:
    return make_door()


def refused(door, prompt, params=PARAMS, **options) -> tuple[str | None, str | None]:
    """The field and the code of the error."""
    with pytest.raises(InvalidRequestError) as info:
        door.process(CallerRequest("x", prompt, params, **options))
    return info.value.param, info.value.code


def test_forms_of_a_prompt(door):
    ids = door.tokenize("hi")
    assert ids[0] == 256 and door.tokenize("hi", add_special_tokens=False) == ids[1:]
    for prompt, text in (
        ("hi", "hi"),
        (ids, None),
        (tuple(ids), None),
        ({"prompt": "hi"}, "hi"),
        ({"prompt_token_ids": ids}, None),
        ({"prompt": "hi", "prompt_token_ids": ids}, "hi"),
    ):
        request = door.process(CallerRequest("x", prompt, PARAMS, priority=3))
        assert (request.prompt, request.prompt_token_ids) == (text, ids)
        assert (request.request_id, request.priority, request.end_token_ids) == ("x", 3, (7,))
    assert door.detokenize(ids) == "<s>hi"


def test_a_conversation_is_rendered_and_has_the_special_tokens_of_its_template(door):
    request = door.process(CallerRequest("x", Conversation(HELLO), PARAMS))
    assert request.prompt == "<user>hello<answer>"
    assert request.prompt_token_ids == door.tokenize(request.prompt, add_special_tokens=False)
    options = {"add_generation_prompt": False, "mood": "!"}
    assert door.process(CallerRequest("x", Conversation(HELLO, options), PARAMS)).prompt == "<user>hello!"
    assert door.tokenize(Conversation(HELLO, options)) == door.tokenize("<user>hello!", add_special_tokens=False)


def test_what_is_no_prompt(door):
    for prompt in (3, None, [1.5], ["a", 1], {}, {"text": "x"}, {"prompt": 3}, {"prompt": None}, []):
        assert refused(door, prompt) == ("prompt", None)
    for ids in ([300], [-1]):
        assert refused(door, ids) == ("prompt", None)
    assert refused(door, "lone \ud800 surrogate") == ("prompt", None)


def test_special_tokens_that_callers_spell(door):
    assert door.tokenize("a<s>", add_special_tokens=False) == [ord("a") - 33, 256]
    for prompt in ({"prompt": "a<s>", "split_special_tokens": True}, Conversation([{"role": "a", "content": "<s>"}])):
        request = door.process(CallerRequest("x", prompt, PARAMS))
        assert request.prompt_token_ids.count(256) == isinstance(prompt, dict), "only the one in front of a prompt"
        assert "<s>" in (request.prompt or "")
    acting = door.process(CallerRequest("x", Conversation([{"role": "a", "content": "<s>"}], {}, False), PARAMS))
    assert acting.prompt_token_ids.count(256) == 1
    for prompt in (
        {"prompt": "a", "split_special_tokens": 1},
        {"prompt_token_ids": [1], "split_special_tokens": True},
        {"prompt": "a", "prompt_token_ids": [1], "split_special_tokens": True},
    ):
        assert refused(door, prompt) == ("prompt", None)


def test_what_is_no_conversation(door):
    for messages in ([], "hello", [{"role": "user"}], [{"content": "x"}], [{"role": "wizard", "content": "x"}], [3]):
        assert refused(door, Conversation(messages)) == ("messages", None)
    assert refused(door, Conversation([{"role": "user", "content": "\ud800"}])) == ("messages", None)
    assert refused(make_door(None), Conversation(HELLO)) == ("messages", "no_chat_template")


def test_too_long(door):
    assert len(door.process(CallerRequest("x", "a" * 62, PARAMS)).prompt_token_ids) == 63
    assert refused(door, "a" * 63) == ("prompt", "context_length_exceeded")
    long = [{"role": "user", "content": "a" * 63}]
    assert refused(door, Conversation(long)) == ("messages", "context_length_exceeded")
    assert len(door.tokenize("a" * 100)) == 101, "only requests have a limit"


def test_too_long_in_the_words_that_agents_look_for(door):
    """Claude Code reads both numbers, LiteLLM and opencode look for either half, and shorten the conversation."""
    with pytest.raises(InvalidRequestError) as found:
        door.process(CallerRequest("x", "a" * 63, PARAMS))
    assert re.search(r"prompt is too long: 64 tokens > 63; .* maximum context length is 64 tokens", str(found.value))


def test_parameters_and_the_rest(door):
    streamed = {"output_kind": OutputKind.DELTA}
    for changes, param in (
        ({"logprobs": 6}, "logprobs"),
        ({"prompt_logprobs": 6}, "prompt_logprobs"),
        ({"stop_token_ids": [300]}, "stop_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"logit_bias": {300: 1.0}}, "logit_bias"),
        ({"best_of": 2, "temperature": 1.0} | streamed, "best_of"),
        ({"beam_width": 2} | streamed, "beam_width"),
        ({"beam_width": 2, "n": 2} | streamed, "beam_width"),
    ):
        assert refused(door, "x", PARAMS.replace(**changes)) == (param, None)
    assert refused(door, "x", params={"n": 1}) == (None, None)
    assert refused(door, "x", priority=1.5) == ("priority", None)
    assert refused(make_door(policy="fcfs"), "x", priority=1) == ("priority", None)
    for request_id in ("", None, "half \ud800"):  # pages and other processes have no UTF-8 for the last
        with pytest.raises(InvalidRequestError, match="request_id"):
            door.process(CallerRequest(request_id, "x", PARAMS))
    assert door.process(CallerRequest("grüße 😀", "x", PARAMS)).request_id == "grüße 😀"
    with pytest.raises(InvalidRequestError, match="tokens"):
        door.detokenize([1, 300])


def test_how_long_a_prompt_is():
    parts = [{"type": "text", "text": "abc"}, {"type": "text", "text": "de"}]
    for prompt, num in (
        ("abcde", 5),
        ([1, 2, 3], 3),
        ({"prompt": "abcde"}, 5),
        ({"prompt_token_ids": [1, 2]}, 2),
        (Conversation([{"role": "user", "content": "abcde"}]), 15),
        (Conversation([{"role": "user", "content": parts}] * 2), 30),
        (Conversation([{"role": "user", "content": ""}] * 1000), 10_000),
        (Conversation([3, {"content": 3}, {"content": [3]}]), 30),  # refused later, by `process`
        (Conversation(HELLO, {"tools": [{"name": "f" * 100}]}), 15 + 100 + len("toolsname") + 9),
        (Conversation([{"role": "tool", "content": "a", "id": "b" * 100}]), 10 + 1 + 100 + len("id") + 4),
        (Conversation(3), 0),
        (3, 0),
        (None, 0),
    ):
        assert num_chars(prompt) == num


def test_the_error_keeps_its_field_and_code_when_it_is_pickled():
    error = pickle.loads(pickle.dumps(InvalidRequestError("no", "prompt", "context_length_exceeded")))
    assert (str(error), error.param, error.code) == ("no", "prompt", "context_length_exceeded")


def test_special_tokens_around_a_text(door):
    """vLLM's `add_special_tokens`: a text that spells them has no second <s> in front."""
    for wish, num in ((None, 2), (True, 2), (False, 1)):
        request = door.process(CallerRequest("x", {"prompt": "<s>a", "add_special_tokens": wish}, PARAMS))
        assert request.prompt_token_ids.count(256) == num
    for prompt in (
        {"prompt": "a", "add_special_tokens": 1},
        {"prompt_token_ids": [1], "add_special_tokens": False},
        {"prompt": "a", "suffix": "b", "add_special_tokens": False},
    ):
        assert refused(door, prompt) == ("add_special_tokens", None)
