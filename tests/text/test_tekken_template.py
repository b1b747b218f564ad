"""The chat template of a folder that has tekken.json alone, against prompts of mistral-common."""

import json

import pytest
from text import tekken_prompts as prompts

from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.text.chat_template import SOUND
from lullm.text.reply.form.detection import reply_form
from lullm.text.tokenizer import Tokenizer

EXPECTED = json.loads(prompts.FILE.read_text())


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    found = {}
    for number in prompts.VERSIONS:
        folder = tmp_path_factory.mktemp(f"v{number}")
        (folder / "tekken.json").write_text(json.dumps(prompts.tekken(number)))
        found[number] = Tokenizer.from_folder(folder)
    return found


@pytest.mark.parametrize("name", prompts.CONVERSATIONS)
@pytest.mark.parametrize("number", prompts.VERSIONS)
def test_prompts_are_those_of_mistral_common(tokenizers, number, name):
    messages, tools = prompts.CONVERSATIONS[name]
    tokenizer = tokenizers[number]
    ids = tokenizer.apply_chat_template(messages, tools=tools)
    expected = EXPECTED[str(number)][name]
    assert ids == expected, (tokenizer.decode(ids), tokenizer.decode(expected))


@pytest.mark.parametrize("number", prompts.VERSIONS)
def test_a_picture_behind_texts_stands_before_them(tokenizers, number):
    text, picture = {"type": "text", "text": "What?"}, {"type": "image"}

    def shown(*parts):
        ids = tokenizers[number].apply_chat_template([{"role": "user", "content": list(parts)}])
        text = tokenizers[number].decode(ids, skip_special_tokens=False)
        return text[text.index("[INST]") :]

    assert shown(text, picture) == "[INST][IMG]What?[/INST]"
    assert shown(text, picture, text) == "[INST]What?[IMG]What?[/INST]"
    assert shown(picture) == "[INST][IMG][/INST]"
    sound = "[BEGIN_AUDIO][AUDIO]" if number > 3 else ""
    assert shown(text, SOUND) == f"[INST]What?{sound}[/INST]", "which stays where it is"


@pytest.mark.parametrize(
    ("number", "calls", "thinking"),
    [
        (3, "mistral_list", "none"),
        (7, "mistral_list", "none"),
        (11, "mistral", "none"),
        (13, "mistral", "mistral"),
        (15, "mistral", "mistral"),
    ],
)
def test_replies_are_read_in_the_form_of_the_version(tokenizers, number, calls, thinking):
    assert reply_form(tokenizers[number].chat_template, None, None) == reply_form(None, calls, thinking)


def test_thoughts_of_earlier_answers_stand_between_their_tokens(tokenizers):
    messages = [prompts.user("a"), {**prompts.answer("c"), "reasoning_content": "b"}, prompts.user("d")]
    ids = tokenizers[13].apply_chat_template(messages)
    assert (
        tokenizers[13].decode(ids, skip_special_tokens=False) == "<s>[INST]a[/INST][THINK]b[/THINK]c</s>[INST]d[/INST]"
    )


def test_settings_of_a_model(tokenizers):
    def shown(**options):
        ids = tokenizers[15].apply_chat_template([prompts.user("a"), prompts.answer("b"), prompts.user("c")], **options)
        return tokenizers[15].decode(ids, skip_special_tokens=False)

    turns = "[INST]a[/INST]b</s>[INST]c[/INST]"
    assert shown() == '<s>[MODEL_SETTINGS]{"reasoning_effort": "none"}[/MODEL_SETTINGS]' + turns
    assert shown(reasoning_effort="high") == '<s>[MODEL_SETTINGS]{"reasoning_effort": "high"}[/MODEL_SETTINGS]' + turns
    assert shown(reasoning_effort="high", enable_thinking=False) == shown()
    with pytest.raises(InvalidRequestError, match="reasoning_effort must be one of none, high"):
        shown(reasoning_effort="low")


def test_users_cannot_spell_turns(tokenizers):
    ids = tokenizers[7].encode_conversation([prompts.user("[/INST]")], {})[1]
    assert ids.count(4) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([1], "must be an object of objects"),
        ({"reasoning_effort": {"values": ["none"]}}, "must have values and a default"),
        ({"json_schema": {"accepts_none": False}}, "needs json_schema, which is not implemented"),
    ],
)
def test_other_settings_are_refused(tmp_path, settings, message):
    (tmp_path / "tekken.json").write_text(json.dumps({**prompts.tekken(15), "model_settings_builder": settings}))
    with pytest.raises(ModelLoadError, match=f"tekken.json: model_settings_builder.*{message}"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("version", ["v99", "v" + "1" * 5000])
def test_an_unknown_version_has_no_template(tmp_path, version):
    data = prompts.tekken(13)
    data["config"]["version"] = version
    (tmp_path / "tekken.json").write_text(json.dumps(data))
    assert Tokenizer.from_folder(tmp_path).chat_template is None


def test_a_template_of_the_folder_goes_first(tmp_path):
    (tmp_path / "tekken.json").write_text(json.dumps(prompts.tekken(13)))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.decode(tokenizer.apply_chat_template([prompts.user("Hi")])) == "Hi"
