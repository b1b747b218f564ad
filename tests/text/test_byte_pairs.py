"""Folders with vocab.json and merges.txt and no tokenizer.json: the ids of transformers, whatever the text."""

import json
import random

import pytest
import tokenizers
from kit.folder.checkpoint import write_checkpoint
from tokenizers import decoders, models, pre_tokenizers, trainers

from lullm import LLM, SamplingParams
from lullm.errors import ModelLoadError
from lullm.text.tokenizer import Tokenizer
from lullm.text.vocabulary import byte_pairs

CORPUS = [
    "the quick brown fox, don't we'll I'M",
    "naïve café über 12345 1,234.5",
    "中文字符 日本語 ни хрена",
    "🙂🙃 the the  there\n\n",
]
ODD = [
    "", " ", "x", " x", "  two  spaces ", "\n\n\r\n\t tabs\n", "a" * 40, "1" * 17, "e\u0301 decomposed é",
    "\u200b\ufeff zero", "<|im_start|>user\nHi<|im_end|>", "x</s><s></s>y", "a <mask> b<mask>", "<|endoftext|>",
    " <pad> <unk>", "CamelCase HTTPServer's", "//// path/to/x\n//", "A\u00a0B\u3000C", "\x00\x01\x7f\x85\u2028",
    "😀" * 5, "ﬁ ligature ①", "مرحبا بالعالم", "don'T WE'LL", "<extra> and <Extra>", "x <extra>",
]  # fmt: skip
FLAGS = {"__type": "AddedToken", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
END = FLAGS | {"content": "</s>", "normalized": True}
MASK = FLAGS | {"content": "<mask>", "lstrip": True}
GPT2 = {"tokenizer_class": "GPT2Tokenizer"}
OPT = GPT2 | {"add_bos_token": True, "add_prefix_space": False, "errors": "replace", "pad_token": "<pad>"}
OPT |= {"bos_token": END, "eos_token": END, "unk_token": END}
QWEN = {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "add_prefix_space": False, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}  # fmt: skip
OF_GPT2, OF_OPT = ["<|endoftext|>"], ["<s>", "<pad>", "</s>", "<unk>"]
OF_ROBERTA = [*OF_OPT, "<mask>"]
CASES = {
    "gpt2": (OF_GPT2, {"model_max_length": 1024}, {"model_type": "gpt2"}, {}),
    "gpt2 with a space": (OF_GPT2, {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}, {}, {}),
    "gpt2 with both ends": (OF_GPT2, GPT2 | {"add_bos_token": True, "add_eos_token": True}, {}, {}),
    "gpt2 with a token added": (OF_GPT2, GPT2, {}, {"<extra>": 0}),
    "gpt2 without its token": ([], GPT2 | {"pad_token": "<pad>"}, {}, {}),
    "opt": (OF_OPT, OPT, {"model_type": "opt"}, {}),
    "qwen2": ([], QWEN, {"model_type": "qwen2"}, {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}),
    "roberta": (OF_ROBERTA, {"tokenizer_class": "RobertaTokenizer", "mask_token": MASK}, {}, {}),
    "roberta by its type": (OF_ROBERTA, {}, {"model_type": "roberta"}, {}),
}


def texts():
    rng = random.Random(0)
    alphabet = "ab zéñ中 \n'1.,!?/🙂_-AB\t"
    return [*CORPUS, *ODD, *("".join(rng.choices(alphabet, k=30)) for _ in range(180))]


def write(folder, special, config, model, added):
    """As `save_pretrained` of the slow classes wrote it."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS * 5,
        trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    backend.model.save(str(folder))
    size = backend.get_vocab_size()
    if "additional_special_tokens" in config:
        flags = {name: value for name, value in FLAGS.items() if name != "__type"} | {"special": True}
        declared = {str(size + at): flags | {"content": token} for token, at in added.items()}
        config = config | {"added_tokens_decoder": declared}
    elif added:
        added = {token: size + at for token, at in added.items()}
        (folder / "added_tokens.json").write_text(json.dumps(added))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if model:
        (folder / "config.json").write_text(json.dumps(model))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_as_transformers(tmp_path, name):
    from transformers import AutoTokenizer

    write(tmp_path, *CASES[name])
    reference = AutoTokenizer.from_pretrained(str(tmp_path))
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text in texts():
        for around in (True, False):
            ids = tokenizer.encode(text, add_special_tokens=around)
            assert ids == reference(text, add_special_tokens=around)["input_ids"], (text, around)
        assert tokenizer.decode(ids) == reference.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    for role in ("bos", "eos", "pad", "unk"):
        assert getattr(tokenizer, f"{role}_token_id") == getattr(reference, f"{role}_token_id"), role
    assert len(tokenizer) == len(reference)


def test_opt_begins_with_its_end(tmp_path):
    tokenizer = Tokenizer.from_folder(write(tmp_path, *CASES["opt"]))
    assert tokenizer.encode("the")[0] == 2 == tokenizer.bos_token_id and tokenizer.encode("the", False)[0] != 2


def test_an_engine_runs_on_it(tmp_path):
    """Such a folder was refused."""
    folder = write_checkpoint(tmp_path / "model", "qwen3")
    backend = json.loads((folder / "tokenizer.json").read_text())["model"]
    prompts = ["the quick fox", "hello  world 12"]
    options = {"max_model_len": 64, "num_gpu_blocks_override": 16}
    with LLM(str(folder), **options) as llm:
        expected = [output.prompt_token_ids for output in llm.generate(prompts, SamplingParams(max_tokens=2))]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(backend["vocab"]))
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in backend["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\r\n".join(merges) + "\n\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    with LLM(str(folder), **options) as llm:
        found = [output.prompt_token_ids for output in llm.generate(prompts, SamplingParams(max_tokens=2))]
    assert found == expected


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "CLIPTokenizer"}',
            "tokenizer_class CLIPTokenizer is not",
        ),
        ("tokenizer_config.json", "{}", "no file names its tokenizer_class.*save_pretrained.*tokenizer=FOLDER"),
        ("tokenizer_config.json", '{"tokenizer_class": "GPT2Tokenizer", "eos_token": 7}', "eos_token must be a token"),
        ("merges.txt", "abc\n", "merges.txt: 'abc' is no pair"),
        ("merges.txt", "xyz qq\n", "are no tokenizer"),
        ("vocab.json", '{"a": "b"}', "are no tokenizer"),
        ("vocab.json", '{"a": -1}', "are no tokenizer"),
        ("added_tokens.json", '{"<extra>": 9}', "added_tokens.json gives '<extra>' the id 9"),
        ("added_tokens.json", '{"<extra>": "x"}', "added_tokens.json"),
        ("merges.txt", None, "belongs to a merges.txt that is not there"),
    ],
)
def test_what_is_no_such_tokenizer_is_named(tmp_path, file, content, message):
    write(tmp_path, ["<|endoftext|>"], {"tokenizer_class": "GPT2Tokenizer"}, {}, {})
    (tmp_path / file).unlink(missing_ok=True)
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.from_folder(tmp_path)


def test_a_long_file_is_not_read(tmp_path, monkeypatch):
    write(tmp_path, ["<|endoftext|>"], {"tokenizer_class": "GPT2Tokenizer"}, {}, {})
    monkeypatch.setattr(byte_pairs, "_LARGEST", 100)
    with pytest.raises(ModelLoadError, match="vocab.json is above 100"):
        Tokenizer.from_folder(tmp_path)
