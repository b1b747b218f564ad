"""GGUF files through the engine: the tokens of the same model's folder, chat, sampling defaults, and both sleeps."""

import gguf
import pytest
from conftest import write_tokenizer
from gguf_files import FORMATS, write_gguf
from golden import SIZES, random_model

from lullm import LLM, SamplingParams
from lullm.errors import ModelLoadError

OPTIONS = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = [[5, 9, 200, 17, 40], list(range(3, 60)), [250, 251]]
ENGINE_SIZES = SIZES | {"vocab_size": 320, "max_position_embeddings": 256}


def save(folder, family, **options):
    random_model(family, ENGINE_SIZES | options).save_pretrained(folder)
    write_tokenizer(folder)


def generate(llm):
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    save(folder, "Llama")
    write_gguf(folder / "model.gguf", folder, "Llama", pre="gpt-2")
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    with LLM(str(folder), **OPTIONS) as llm:
        tokens = generate(llm)
    assert len({token for output in tokens for token in output}) > 10, "a model that says something"
    return tokens


def test_the_tokens_of_the_folder(folder, expected):
    with LLM(str(folder / "model.gguf"), **OPTIONS) as llm:
        assert generate(llm) == expected
        tokenizer = llm.get_tokenizer()
        assert tokenizer.eos_token == "<|im_end|>"
        messages = [{"role": "user", "content": "hello world"}]
        assert llm.chat(messages, GREEDY, use_tqdm=False)[0].prompt_token_ids == tokenizer.apply_chat_template(
            messages, add_generation_prompt=True
        )


@pytest.mark.parametrize("level", [1, 2])
def test_sleep(folder, expected, level):
    with LLM(str(folder / "model.gguf"), **OPTIONS, enable_sleep_mode=True) as llm:
        llm.sleep(level=level)
        llm.wake_up()
        assert generate(llm) == expected


def test_a_folder_with_one_file(folder, expected, tmp_path):
    (tmp_path / "any name.gguf").symlink_to(folder / "model.gguf")
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert generate(llm) == expected


def test_sampling_defaults_of_the_file(folder, tmp_path, monkeypatch):
    original = gguf.GGUFWriter.write_header_to_file

    def with_defaults(self, *args):
        self.add_float32("general.sampling.temp", 0.6)
        self.add_int32("general.sampling.top_k", 20)
        self.add_float32("general.sampling.penalty_repeat", 1.05)
        original(self, *args)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", with_defaults)
    write_gguf(tmp_path / "model.gguf", folder, "Llama", pre="gpt-2")
    with LLM(str(tmp_path), **OPTIONS) as llm:
        params = llm.get_default_sampling_params()
        assert (params.temperature, params.top_k, params.repetition_penalty) == (0.6, 20, 1.05)


def test_a_file_without_a_vocabulary_says_so(tmp_path):
    save(tmp_path, "Qwen3")
    (tmp_path / "tokenizer.json").unlink()
    write_gguf(tmp_path / "model.gguf", tmp_path, "Qwen3", FORMATS.F16)
    with pytest.raises(ModelLoadError, match="has no tokenizer.ggml.model"):
        LLM(str(tmp_path / "model.gguf"))
