"""GGUF models that see pictures by an mmproj file: the parameters and tokens of the same model's folder."""

import json

import numpy as np
import pytest
import torch
from kit.engine.parts import model_of
from kit.folder.gguf_files import FORMATS, add_values
from kit.vision import mmproj_files
from kit.vision.checkpoint import picture, write_gemma3, write_idefics3, write_internvl, write_pixtral, write_qwen_vl
from kit.vision.mmproj_files import write_pair

from lullm import LLM, SamplingParams
from lullm.cli.main import main
from lullm.errors import ConfigError, InvalidRequestError, ModelLoadError

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
    "qwen3.5": lambda folder: write_qwen_vl(folder, "Qwen3_5"),
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


def decoded(llm, word):
    return [output.outputs[0].token_ids for output in llm.generate(prompts(word), GREEDY, use_tqdm=False)]


@pytest.mark.parametrize("tower", [FORMATS.F16, FORMATS.Q8_0], ids=lambda kind: kind.name)
def test_a_quantized_model_and_its_tower(tmp_path, tower):
    """Rows near those of the folder; the same tokens from a cached prefix, in chunks, and behind both sleeps."""
    checkpoint = write_qwen_vl(tmp_path / "folder")
    pair = write_pair(tmp_path / "files", checkpoint, FORMATS.Q8_0, tower)
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        wanted = parameters(llm)
    with LLM(str(pair.model), **OPTIONS, enable_sleep_mode=True) as llm:
        found = parameters(llm)
        for name, value in wanted.items():
            if name.startswith("vision."):
                assert torch.allclose(found[name], value, atol=8e-3), name
        tokens = decoded(llm, pair.word)
        assert decoded(llm, pair.word) == tokens, "from cached prefixes"
        for level in (1, 2):
            llm.sleep(level=level)
            llm.wake_up()
            assert decoded(llm, pair.word) == tokens
    with LLM(str(pair.model), **OPTIONS | {"max_num_batched_tokens": 16, "max_num_seqs": 4}) as llm:
        assert decoded(llm, pair.word) == tokens


def test_older_files_swap_the_matrices_of_an_mlp(tmp_path, monkeypatch):
    checkpoint = write_idefics3(tmp_path / "folder")
    monkeypatch.setattr(mmproj_files, "add_values", lambda writer, name, *rest: add_values(writer, turned(name), *rest))
    pair = write_pair(tmp_path / "files", checkpoint)
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        wanted = parameters(llm)
    with LLM(str(pair.model), **OPTIONS) as llm:
        assert all(torch.equal(value, wanted[name]) for name, value in parameters(llm).items())


def turned(name):
    swapped = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    stem = next((stem for stem in swapped if stem in name), "")
    return name.replace(stem, swapped[stem]) if stem else name


def test_the_option(tmp_path, capsys):
    checkpoint = write_internvl(tmp_path / "folder")
    pair = write_pair(tmp_path / "files", checkpoint)
    elsewhere = pair.mmproj.rename(tmp_path / "tower.gguf")
    shown = prompts(pair.word)[:1]
    with LLM(str(pair.model), **OPTIONS) as llm:
        with pytest.raises(
            InvalidRequestError, match=r"takes text only: no \*mmproj\*.gguf is beside its file; give one"
        ):
            llm.generate(shown, GREEDY, use_tqdm=False)
        assert not any(name.startswith("vision.") for name in parameters(llm))
    with LLM(str(pair.model), mmproj=elsewhere, **OPTIONS) as llm:
        tokens = decoded(llm, pair.word)
    elsewhere.rename(pair.mmproj)
    with LLM(str(pair.model.parent), **OPTIONS) as llm:
        assert decoded(llm, pair.word) == tokens, "the folder holds one model"
    for options in ({"mmproj": "none"}, {"language_model_only": True}):
        with LLM(str(pair.model), **OPTIONS, **options) as llm:
            with pytest.raises(InvalidRequestError, match=f"takes text only: .*{next(iter(options))}.* pictures off"):
                llm.generate(shown, GREEDY, use_tqdm=False)
            assert not any(name.startswith("vision.") for name in parameters(llm))
    assert main(["show", str(pair.model)]) == 0
    assert "yes, by a tower of 2 layers and 32 elements" in capsys.readouterr().out
    assert main(["plan", str(pair.model), "--json", *SPEEDS]) == 0
    with_tower = json.loads(capsys.readouterr().out)["plans"][0]["weights_bytes"]
    assert main(["plan", str(pair.model), "--json", "--no-mmproj", *SPEEDS]) == 0
    of_tower = sum(value.nbytes for name, value in named_parameters(pair) if name.startswith("vision."))
    assert with_tower - json.loads(capsys.readouterr().out)["plans"][0]["weights_bytes"] == pytest.approx(
        of_tower, abs=4096
    )


SPEEDS = ("--memory", "1GiB", "--bandwidth", "10", "--tflops", "1")


def named_parameters(pair):
    with LLM(str(pair.model), **OPTIONS) as llm:
        yield from parameters(llm).items()


@pytest.mark.parametrize(
    ("model", "mmproj", "problem"),
    [
        ("folder", "tower", "mmproj=.* belongs to a model in a GGUF file; .* is a folder"),
        ("mmproj", None, "reads pictures for another GGUF file, and is no model; give that file as the model"),
        ("model", "model", "it is a model of 'qwen2', and no mmproj file"),
        ("model", "none.gguf", "mmproj: there is no file"),
    ],
)
def test_wrong_files(tmp_path, model, mmproj, problem):
    pair = write_pair(tmp_path / "files", write_internvl(tmp_path / "folder"))
    paths = {"folder": pair.checkpoint.folder, "model": pair.model, "mmproj": pair.mmproj, "tower": pair.mmproj}
    options = {} if mmproj is None else {"mmproj": paths.get(mmproj, mmproj)}
    with pytest.raises((ConfigError, ModelLoadError), match=problem):
        LLM(str(paths[model]), **options)


def test_a_damaged_tower_says_which_tensor(tmp_path):
    def twice(writer):
        writer.add_tensor("v.blk.0.unknown.weight", np.zeros(4, np.float32))

    pair = write_pair(tmp_path / "files", write_internvl(tmp_path / "folder"), edit=twice)
    with pytest.raises(ModelLoadError, match=r"unexpected tensor vision.tower.layers.0.unknown.weight"):
        LLM(str(pair.model), **OPTIONS)
