"""Folders of every family with one thing wrong: an error that names it, and nothing but a ModelLoadError."""

import json
import math
import random

import pytest
import torch
from kit.model.families import CASES
from kit.model.golden import load_model, save_model
from kit.model.renamed import RENAMED
from safetensors.torch import load_file, save_file

from lullm.config.family.table import FAMILIES
from lullm.config.model import ModelConfig
from lullm.errors import LullmError, ModelLoadError
from lullm.models.registry import build_model

NONSENSE = (math.nan, -1, 0, 10**400, "x", [], {}, True, None, 1.5)
FEW = ("Cohere2", "Ernie4_5_Moe", "GPTNeoX")
"""Families whose rules are of different kinds; the others run with the slow tests."""
FAMILY = [pytest.param(family, marks=() if family in FEW else pytest.mark.slow, id=family) for family in CASES]


HEADS = ("lm_head.weight", "embed_out.weight", "output.weight", "transformer.output_layer.weight")


@pytest.fixture
def folder(tmp_path, family):
    save_model(tmp_path, family, CASES[family].engine or next(iter(CASES[family].variants.values())))
    return tmp_path


def refusal(folder):
    with pytest.raises(LullmError) as caught:
        load_model(folder)
    return str(caught.value)


@pytest.mark.parametrize("family", FAMILY)
def test_tensors(folder, family):
    file = folder / "model.safetensors"
    whole, content = load_file(file), file.read_bytes()
    for cut in (0, 7, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:cut])
        assert "damaged" in refusal(folder)
    unread = RENAMED[family].beside if family in RENAMED else ()
    for name in random.Random(0).sample(sorted(whole.keys() - set(unread)), 5):
        last = name.split(".")[-1].replace("expert_bias", "correction_bias")  # as Ling's files name it
        save_file({key: tensor for key, tensor in whole.items() if key != name}, file)
        if name in HEADS:  # the embedding in its place, where the family ties
            continue
        if family == "AXK1" and last == "e_score_correction_bias":  # zeros in its place: a release has none
            continue
        message = refusal(folder)
        assert "missing tensor" in message and last.removesuffix("_proj") in message or "num_hidden_layers" in message
        for changed in (whole[name][:-1].clone(), whole[name].unsqueeze(0).repeat(2, *[1] * whole[name].dim())):
            save_file(whole | {name: changed}, file)
            assert name in refusal(folder)
        save_file(whole | {name: whole[name].to(torch.int32)}, file)
        assert name in refusal(folder)
        save_file(whole | {f"{name}.more": whole[name].clone()}, file)
        assert f"unexpected tensor {name}.more" in refusal(folder)


@pytest.mark.parametrize("family", FAMILY)
def test_keys(folder, family):
    """What a key of nonsense gives is a model all the same, or an error that names a key."""
    data = json.loads((folder / "config.json").read_text())
    reads = FAMILIES[data["architectures"][0]].reads | FAMILIES[data["architectures"][0]].defaults.keys()
    for key in sorted(set(data) | reads):
        for value in NONSENSE:
            try:
                config = ModelConfig.from_dict(data | {key: value})
                if config.num_hidden_layers <= 8 and config.vocab_size < 1 << 20:
                    build_model(config, torch.float32, 64)
            except ModelLoadError as error:
                assert "config.json" in str(error) or "max_model_len" in str(error), (key, value)
