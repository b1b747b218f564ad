import copy
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models
from tokenizers.processors import TemplateProcessing

import lullm
from lullm.errors import InvalidRequestError, LullmError, ModelLoadError
from lullm.text.tokenizer import Tokenizer


def write_config(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_round_trip(byte_level: Tokenizer, sentencepiece_like: Tokenizer) -> None:
    for tokenizer in (byte_level, sentencepiece_like):
        for text in ("", "hello world", "😀 中 é\n", "  two  spaces "):
            assert tokenizer.decode(tokenizer.encode(text)) == text
            assert tokenizer.batch_decode([tokenizer.encode(text)] * 2) == [text] * 2


def test_special_tokens(sentencepiece_like: Tokenizer) -> None:
    bos_id = sentencepiece_like.bos_token_id
    ids = sentencepiece_like.encode("the fox")
    assert ids[0] == bos_id and sentencepiece_like.encode("the fox", add_special_tokens=False) == ids[1:]
    assert sentencepiece_like.decode(ids) == "the fox"
    assert sentencepiece_like.decode(ids, skip_special_tokens=False) == "<s> the fox"
    assert bos_id in sentencepiece_like.special_token_ids and ids[1] not in sentencepiece_like.special_token_ids


def test_batch_is_each_alone(byte_level: Tokenizer) -> None:
    texts = ["", "hello", "中" * 50, "the quick brown fox"]
    assert byte_level.encode_batch(texts) == [byte_level.encode(text) for text in texts]
    assert byte_level.encode_batch([]) == []


def test_sizes_and_ids(byte_level: Tokenizer) -> None:
    ids = byte_level.backend.get_vocab().values()
    assert byte_level.vocab_size == max(ids) + 1
    assert byte_level.bos_token_id is None
    assert byte_level.eos_token_id == byte_level.backend.token_to_id("<|end|>")
    gaps = Tokenizer(Backend(models.WordLevel({"a": 0, "b": 7})))
    assert gaps.vocab_size == 8 and gaps.decode([3]) == "" and gaps.decode_token(3) == ""


def test_decode_token(byte_level: Tokenizer, sentencepiece_like: Tokenizer) -> None:
    assert [byte_level.decode_token(i) for i in byte_level.encode("the fox")][:1] == ["the"]
    assert "".join(byte_level.decode_token(i) for i in byte_level.encode("the lazy fox")) == "the lazy fox"
    assert sentencepiece_like.decode_token(sentencepiece_like.backend.token_to_id("▁the")) == " the"
    assert sentencepiece_like.decode_token(sentencepiece_like.backend.token_to_id("<0xE4>")) == "�"
    assert sentencepiece_like.decode_token(sentencepiece_like.backend.token_to_id("<0x0A>")) == "\n"
    assert byte_level.eos_token_id is not None and byte_level.decode_token(byte_level.eos_token_id) == "<|end|>"
    assert byte_level.decode_token(byte_level.vocab_size + 100) == ""


@pytest.mark.parametrize("text", [None, 3, b"x", ["x"], "lone \ud800 surrogate"])
def test_texts_that_are_none(byte_level: Tokenizer, text: Any) -> None:
    with pytest.raises(InvalidRequestError):
        byte_level.encode(text)
    with pytest.raises(InvalidRequestError):
        byte_level.encode_batch(["fine", text])


def test_a_text_that_the_vocabulary_cannot_spell() -> None:
    with pytest.raises(InvalidRequestError, match="cannot encode"):
        Tokenizer(Backend(models.WordLevel({"a": 0}))).encode("b")


@pytest.mark.parametrize("token_id", [-1, 2**32, 2**70, "1", None, 1.5])
def test_ids_that_are_none(byte_level: Tokenizer, token_id: Any) -> None:
    with pytest.raises(InvalidRequestError):
        byte_level.decode([1, token_id])
    with pytest.raises(InvalidRequestError):
        byte_level.decode_token(token_id)


def test_truncation_and_padding_are_off() -> None:
    backend = Backend(models.WordLevel({"a": 0, "[PAD]": 1}, unk_token="a"))
    backend.enable_truncation(1)
    backend.enable_padding(length=9, pad_id=1)
    assert Tokenizer(backend).encode("a") == [0]
    assert backend.truncation is None and backend.padding is None


def test_threads_share_one(byte_level: Tokenizer) -> None:
    rng = random.Random(1)
    texts = ["".join(rng.choices("the fox 中😀 é", k=rng.randrange(200))) for _ in range(300)]
    expected = [byte_level.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(byte_level.encode, texts)) == expected
        assert list(pool.map(byte_level.decode, expected)) == texts


def test_a_fork_after_encoding_is_quiet(folder: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from lullm.text.tokenizer import Tokenizer\n"
        "before = dict(os.environ); t = Tokenizer.from_folder(Path(sys.argv[1])); t.encode_batch(['the fox'] * 64)\n"
        "assert dict(os.environ) == before and 'torch' not in sys.modules\n"
        "child = os.fork()\n"
        "if not child: t.encode('x'); os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    env["PYTHONPATH"] = str(Path(lullm.__file__).parents[1])
    # Python 3.12 itself warns of forking with threads; that is the caller's affair.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_from_folder(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_token_id == tokenizer.backend.token_to_id("<|end|>")
    assert tokenizer.bos_token_id is None
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.render([{"role": "user", "content": "Hi"}]) == "Hi<|end|>"


def test_only_tokenizer_json_is_needed(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.chat_template is None and tokenizer.eos_token_id is None
    assert tokenizer.decode(tokenizer.encode("fox")) == "fox"


def test_special_tokens_map_fills_what_the_config_leaves_open(folder: Path) -> None:
    tokens = {"bos_token": {"content": "<|start|>", "lstrip": False}, "eos_token": "<|start|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.special_tokens == {"eos_token": "<|end|>"}  # the config says bos_token: null
    (folder / "tokenizer_config.json").write_text("{}")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.special_tokens == {"bos_token": "<|start|>", "eos_token": "<|start|>"}
    assert tokenizer.bos_token_id == tokenizer.backend.token_to_id("<|start|>")


def test_what_stands_around_a_text_is_in_tokenizer_json_alone(folder: Path) -> None:
    write_config(folder, bos_token="<|start|>", add_bos_token=True, add_eos_token=True)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("fox") == tokenizer.encode("fox", add_special_tokens=False)
    start_id = tokenizer.backend.token_to_id("<|start|>")
    tokenizer.backend.post_processor = TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", start_id)]
    )
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    write_config(folder, add_bos_token=False)
    assert Tokenizer.from_folder(folder).encode("fox") == [start_id, *tokenizer.encode("fox", add_special_tokens=False)]


def test_tokens_that_only_the_config_declares(folder: Path) -> None:
    next_id = Tokenizer.from_folder(folder).vocab_size
    entries = {str(next_id + n): {"content": f"<|tool_{n}|>", "special": n == 0} for n in range(12)}
    write_config(folder, added_tokens_decoder=entries)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("<|tool_10|>") == [next_id + 10]
    assert next_id in tokenizer.special_token_ids and next_id + 1 not in tokenizer.special_token_ids
    write_config(folder, added_tokens_decoder={"7": {"content": "<|elsewhere|>"}})
    with pytest.raises(ModelLoadError, match="do not belong together"):
        Tokenizer.from_folder(folder)


def test_a_named_token_is_special_and_keeps_its_id(folder: Path) -> None:
    before = Tokenizer.from_folder(folder)
    think_id = before.encode("<think>")[0]
    assert think_id not in before.special_token_ids
    write_config(folder, eos_token="<think>", additional_special_tokens=[{"content": "added é with space"}])
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_token_id == think_id and think_id in tokenizer.special_token_ids
    assert tokenizer.decode(tokenizer.encode("a<think>added é with spaceb")) == "ab"
    assert tokenizer.vocab_size == before.vocab_size


def test_a_named_token_that_does_not_exist_is_none(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_config(folder, eos_token="<|nowhere|>")
    assert Tokenizer.from_folder(folder).eos_token_id is None
    assert "<|nowhere|>" in caplog.text


def test_where_chat_templates_may_be(folder: Path) -> None:
    user = [{"role": "user", "content": "Hi"}]

    def rendered(**kwargs: Any) -> str:
        template = Tokenizer.from_folder(folder).chat_template
        assert template is not None
        return template.render(user, **kwargs)

    write_config(folder, chat_template=[{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}])
    assert (rendered(), rendered(tools=[{}])) == ("D", "T")
    (folder / "chat_template.jinja").write_text("file é{{ eos_token }}", encoding="utf-8")
    assert (rendered(), rendered(tools=[{}])) == ("file é<|end|>", "T")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("T2")
    assert rendered(tools=[{}]) == "T2"


def test_missing_folder_and_files(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no model folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")
    with pytest.raises(ModelLoadError, match="a model folder holds"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(ModelLoadError, match="SentencePiece"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"model": {"type": "BPE"}}'])
def test_broken_tokenizer_json(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelLoadError, match="tokenizer.json"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    "rules",
    [
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "(?:a|aa)+$c"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(?: |  )+$c"}, "content": "x"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"decoder": {"type": "Replace", "pattern": {"Regex": "(?:1|11)+$c"}, "content": "x"}},
    ],
    ids=["pre-tokenizer", "normalizer", "charsmap", "decoder"],
)
def test_rules_that_panic(folder: Path, rules: dict[str, Any]) -> None:
    """A panic of the library is no Exception; it went through every handler."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | rules))
    with pytest.raises(ModelLoadError, match="tokenizer.json"):
        Tokenizer.from_folder(folder)


def test_a_text_on_which_the_rules_panic(folder: Path) -> None:
    """What loads may still backtrack on a later text; that is the request's error, and the next one is served."""
    path = folder / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "(?:b|bb)+$c"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pre_tokenizer": split}))
    tokenizer = Tokenizer.from_folder(folder)
    with pytest.raises(InvalidRequestError, match="cannot encode"):
        tokenizer.encode("b" * 64)
    assert tokenizer.encode("hello")


def test_ctrl_c_in_the_library_stays_ctrl_c(byte_level: Tokenizer) -> None:
    class Interrupted:
        def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> None:
            raise KeyboardInterrupt

    tokenizer = copy.copy(byte_level)
    tokenizer.backend = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("x")


def test_damaged_tokenizer_json_never_escapes_the_tree(folder: Path) -> None:
    path = folder / "tokenizer.json"
    good = path.read_bytes()
    rng = random.Random(3)
    num_refused = 0
    for _ in range(150):
        data = bytearray(good)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice([1, 3])):
            data[rng.randrange(len(data))] = rng.choice(b'0 "{}x\xff')
        path.write_bytes(data)
        try:
            tokenizer = Tokenizer.from_folder(folder)
        except LullmError:
            num_refused += 1
        else:
            tokenizer.decode(tokenizer.encode("fox"))
    assert num_refused > 20


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_broken_side_files(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=name):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": 7},
        {"eos_token": ""},
        {"eos_token": {"no_content": 1}},
        {"chat_template": 7},
        {"chat_template": ["x"]},
        {"chat_template": [{"name": "x"}]},
        {"chat_template": "{% for %}"},
        {"added_tokens_decoder": [1]},
        {"added_tokens_decoder": {"x": {"content": "y"}}},
        {"added_tokens_decoder": {"500": "y"}},
        {"added_tokens_decoder": {"500": {}}},
        {"added_tokens_decoder": {"500": {"content": 7}}},
        {"additional_special_tokens": [7]},
    ],
)
def test_config_that_makes_no_sense(folder: Path, config: dict[str, Any]) -> None:
    write_config(folder, **config)
    with pytest.raises(ModelLoadError):
        Tokenizer.from_folder(folder)
