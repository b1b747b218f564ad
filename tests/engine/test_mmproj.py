"""GGUF models that see pictures by an mmproj file: the parameters and tokens of the same model's folder."""

import pytest
import torch
from kit.engine.parts import model_of
from kit.folder.gguf_files import FORMATS
from kit.vision.checkpoint import picture, write_gemma3, write_idefics3, write_internvl, write_pixtral, write_qwen_vl
from kit.vision.mmproj_files import write_pair

from lullm import LLM, SamplingParams

OPTIONS = {"dtype": "float32", "max_model_len": 512, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
PICTURES = [picture(61, 40), picture(28, 90, seed=1)]
SIX_LAYERS = {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
"""As all files of Gemma 3, which do not say it."""
WRITERS = {
    "gemma3": lambda folder: write_gemma3(folder, SIX_LAYERS),
    "idefics3": lambda folder: write_idefics3(folder, size={"longest_edge": 78}, max_image_size={"longest_edge": 26}),
    "internvl": write_internvl,
    "qwen2": lambda folder: write_qwen_vl(folder, "Qwen2VL"),
    "qwen2.5": write_qwen_vl,
    "qwen3": lambda folder: write_qwen_vl(folder, "Qwen3VL"),
    "pixtral": lambda folder: write_pixtral(folder, settings={"size": {"longest_edge": 48}}),
    "mistral3": lambda folder: write_pixtral(folder, 2, settings={"size": {"longest_edge": 48}}),
}


def prompts(word):
    return [
        {"prompt": f"hello {word}\nwhat fox?", "multi_modal_data": {"image": [PICTURES[0]]}},
        {"prompt": f"{word} jumps over {word}the lazy dog", "multi_modal_data": {"image": PICTURES}},
        "the quick brown fox",
    ]


def parameters(llm):
    return {name: value.clone() for name, value in model_of(llm).named_parameters()}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_the_parameters_and_tokens_of_the_folder(tmp_path, write):
    checkpoint = write(tmp_path / "folder")
    pair = write_pair(tmp_path / "files", checkpoint)
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        wanted, outputs = parameters(llm), llm.generate(prompts(checkpoint.word), GREEDY, use_tqdm=False)
    with LLM(str(pair.model), **OPTIONS) as llm:
        found, others = parameters(llm), llm.generate(prompts(pair.word), GREEDY, use_tqdm=False)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, atol=1e-6), name
    for output, other in zip(outputs, others, strict=True):
        assert other.prompt_token_ids == output.prompt_token_ids
        assert other.outputs[0].token_ids == output.outputs[0].token_ids
