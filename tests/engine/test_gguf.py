"""GGUF files through the engine: the tokens of the same model's folder, chat, sampling defaults, and both sleeps."""

import gguf
import pytest
import torch
from kit.folder.checkpoint import write_tokenizer
from kit.folder.gguf_files import FORMATS, write_gguf
from kit.model.golden import SIZES, random_model
from safetensors.torch import save_file

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, ModelLoadError
from lullm.weights.gguf.checkpoint import GGUFSource
from lullm.weights.gguf.tensor import GGUFTensor

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


def test_a_file_of_ollamas_store(folder, expected, tmp_path):
    """Its name is the digest of its content; it was refused as a file that is no GGUF file."""
    blob = tmp_path / "sha256-0123"
    blob.symlink_to(folder / "model.gguf")
    with LLM(str(blob), **OPTIONS) as llm:
        assert generate(llm) == expected
    (tmp_path / "other").write_bytes(b"GGU")
    with pytest.raises(ModelLoadError, match="is a file; pass the folder that holds it, or a GGUF file"):
        LLM(str(tmp_path / "other"))


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


def as_decoded(path, folder, family):
    """A folder with the numbers that the blocks of a file mean, in float32, beside its config and tokenizer."""
    stored = {}
    for name, tensor, _ in GGUFSource(path).tensors():
        stored[name] = (tensor.decode() if isinstance(tensor, GGUFTensor) else tensor).contiguous()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((path.parent / name).read_bytes())
    save_file(stored, folder / "model.safetensors")


def largest_first(name):
    """As Q4_K_M: values and the last matrix of some layers in Q6_K, the embedding too."""
    return FORMATS.Q6_K if "attn_v" in name or "blk.0.ffn_down" in name or "token_embd" in name else FORMATS.Q4_K


def narrow_experts(name):
    """As the files of gpt-oss."""
    return FORMATS.MXFP4 if "_exps." in name else None


def three_bits(name):
    """As Q2_K: values and the last matrices in Q3_K, the embedding in Q6_K."""
    return FORMATS.Q6_K if "token_embd" in name else FORMATS.Q3_K if "attn_v" in name or "ffn_down" in name else None


def five_bits(name):
    return FORMATS.Q5_0 if "attn_v" in name or "ffn_down" in name else None


def bytes_for_values(name):
    """As Q5_K_M of a model whose rows are no multiples of 256."""
    return FORMATS.Q8_0 if "attn_v" in name else None


MIXES = {
    "Q8_0": ("Qwen3", FORMATS.Q8_0, None, 9),
    "Q4_0": ("Llama", FORMATS.Q4_0, None, 10),
    "Q4_1": ("Llama", FORMATS.Q4_1, None, 10),
    "Q5_1 beside Q8_0": ("Qwen2", FORMATS.Q5_1, bytes_for_values, 10),
    "Q4_K_M": ("Qwen3", FORMATS.Q4_K, largest_first, 9),
    "Q5_K": ("Qwen2", FORMATS.Q5_K, None, 10),
    "Q6_K, fused in the file": ("Phi3", FORMATS.Q6_K, None, 10),
    "Q2_K": ("Qwen3", FORMATS.Q2_K, three_bits, 9),
    "IQ4_XS": ("Llama", FORMATS.IQ4_XS, None, 10),
    "IQ4_NL beside Q5_0": ("Qwen2", FORMATS.IQ4_NL, five_bits, 10),
    "experts in MXFP4": ("GptOss", FORMATS.Q8_0, narrow_experts, 2 * (2 * 4 + 2) + 2),
    "experts in Q8_0": ("Qwen3Moe", FORMATS.Q8_0, None, 2 * (2 * 4 + 2) + 2),
}


@pytest.mark.parametrize(("family", "block", "mix", "num_kept"), MIXES.values(), ids=MIXES)
def test_blocks_are_computed_on_as_they_are(tmp_path, monkeypatch, caplog, family, block, mix, num_kept):
    """The log-probabilities of the decoded weights, with memory for the blocks only; both sleeps bring them back."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
    sizes["tie_word_embeddings"] = family == "Qwen3"
    if family == "Qwen3Moe":
        sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True}
    if family == "GptOss":
        sizes |= {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 256}
    save(tmp_path, family, **sizes)
    path, decoded = tmp_path / "model.gguf", tmp_path / "decoded"
    decoded.mkdir()

    def choose(name):
        return mix(name) if mix and name.endswith("weight") and "norm" not in name else None

    write_gguf(path, tmp_path, family, block, choose, pre="gpt-2")
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3, prompt_logprobs=1)
    with monkeypatch.context() as patch:
        if family == "GptOss":  # whose folders hold the experts of a layer as one tensor
            patch.setattr(GGUFSource, "formats", lambda source, rules: {})
            decoded = path
        else:
            as_decoded(path, decoded, family)
        with LLM(str(decoded), **OPTIONS) as llm:
            expected = llm.generate(PROMPTS, params, use_tqdm=False)
    with caplog.at_level("INFO", logger="lullm"), LLM(str(path), **OPTIONS, enable_sleep_mode=True) as llm:
        assert f"{num_kept} matrices quantized as they are stored" in caplog.text
        for level in (0, 1, 2):
            if level:
                llm.sleep(level=level)
                llm.wake_up()
            found = llm.generate(PROMPTS, params, use_tqdm=False)
            for ours, theirs in zip(found, expected, strict=True):
                for mine, other in zip(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:], strict=True):
                    token = next(iter(other))
                    assert mine[token].logprob == pytest.approx(other[token].logprob, abs=2e-2)
                assert ours.outputs[0].token_ids[0] == theirs.outputs[0].token_ids[0]
        if family == "Qwen3" and mix is None:
            with pytest.raises(ModelLoadError, match="holds groups of integers as the checkpoint"):
                llm.update_weights([("model.layers.0.mlp.down_proj.weight", torch.zeros(256, 512))])


@pytest.mark.parametrize("option", [{"load_format": "safetensors"}, {"model_impl": "transformers"}], ids=str)
def test_options_that_a_file_leaves_no_choice_of(tmp_path, option):
    """They were taken, and changed nothing."""
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ConfigError, match=f"{next(iter(option))}=.* is not for GGUF files"):
        LLM(str(tmp_path / "model.gguf"), **option)
