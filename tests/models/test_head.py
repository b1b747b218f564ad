"""Whose head it is: what `tie_word_embeddings` says, and what the files hold, give what transformers gives.

transformers ties head and embedding where the config says so, or says nothing and the family ties by default, unless
the files hold both with other contents.
"""

import json
import struct

import pytest
import torch
from kit.model.families import CASES, WITH_CLASS
from kit.model.golden import PagedRun, assert_close, golden_logits, load_model, model_class, prompt, save_model
from safetensors.torch import load_file, save_file

from lullm.cli.main import main
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.models.fallback.choice import read_model_config
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.reading.files import stored_names
from lullm.weights.reading.head import differing_head

TOKENS = prompt(1, 30)
TIES = "tie_word_embeddings"


def options_of(family):
    cases = CASES[family]
    return (cases.engine or next(iter(cases.variants.values()))) | {TIES: False}


def say(folder, **keys):
    """Put keys into a config.json; ...: take it out."""
    path = folder / "config.json"
    data = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))


def check(folder, family):
    """The logits of transformers, from the same folder. Returns whether the head is tied."""
    theirs = model_class(family).from_pretrained(folder).eval()
    model = load_model(folder)
    assert_close(PagedRun(model, TORCH_CPU_OPS, 1).step([(0, TOKENS)]), golden_logits(theirs, TOKENS))
    return model.config.ties_head


@pytest.mark.parametrize("family", [family for family in WITH_CLASS if family.id != "Zamba2"])
def test_another_head_than_the_embedding(tmp_path, family):
    save_model(tmp_path, family, options_of(family))
    assert {"lm_head.weight", "embed_out.weight", "output_projection.weight", "decoder.weight"} & load_file(
        tmp_path / "model.safetensors"
    ).keys()
    for said in (True, ...):
        say(tmp_path, **{TIES: said})
        assert not check(tmp_path, family)


def test_blocks_that_are_not_shared_are_refused(tmp_path):
    """Zamba 2's, where neither they nor head and embedding are tied: never are the first layer's taken for all."""
    save_model(tmp_path, "Zamba2", options_of("Zamba2") | {TIES: False})
    with pytest.raises(ModelLoadError, match="tie_word_embeddings"):
        load_model(tmp_path)
    say(tmp_path, **{TIES: True})
    with pytest.raises(ModelLoadError, match=r"unexpected tensor model\.layers\.2\.shared_transformer\."):
        load_model(tmp_path)


@pytest.mark.parametrize(("family", "said"), [("Ernie4_5", ...), ("GPT2", ...), ("Llama", True), ("Gemma2", True)])
def test_a_copy_of_the_embedding_is_no_head(tmp_path, family, said, caplog):
    theirs = save_model(tmp_path, family, options_of(family) | {TIES: True})
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": theirs.get_input_embeddings().weight.detach().clone()}, file)
    say(tmp_path, **{TIES: said})
    assert check(tmp_path, family)
    assert "tie_word_embeddings" not in caplog.text
    save_file(tensors, file)
    assert check(tmp_path, family)


def test_a_warning_says_that_the_config_is_wrong(tmp_path, caplog):
    save_model(tmp_path, "Llama", {TIES: False})
    say(tmp_path, **{TIES: True})
    assert not read_model_config(tmp_path, "auto").ties_head
    assert "the files hold lm_head.weight with other contents, which is used" in caplog.text


def test_transformers_code_gets_the_stored_head(tmp_path):
    theirs = save_model(tmp_path, "Llama", {TIES: False})
    say(tmp_path, **{TIES: True})
    config = read_model_config(tmp_path, "transformers")
    assert config.foreign is not None and not config.tie_word_embeddings
    assert config.foreign[TIES] is False and theirs.config.tie_word_embeddings is False


def test_a_quantized_copy_keeps_the_head(tmp_path):
    save_model(tmp_path / "in", "Ernie4_5", {TIES: False})
    say(tmp_path / "in", **{TIES: ...})
    for quantization in ("int8", "int4"):
        out = tmp_path / quantization
        assert main(["quantize", str(tmp_path / "in"), str(out), "--quantization", quantization]) == 0
        assert not ModelConfig.from_folder(out).ties_head
        assert {"lm_head.weight", "model.embed_tokens.weight"} <= stored_names(out)


ROWS = torch.arange(60.0).view(12, 5)
OTHERS = {
    "the same": (ROWS.clone(), None),
    "one number at the end": (ROWS + torch.nn.functional.pad(torch.ones(1), (59, 0)).view(12, 5), "lm_head.weight"),
    "another type": (ROWS.bfloat16(), "lm_head.weight"),
    "another shape": (ROWS.clone().view(15, 4), "lm_head.weight"),
}


@pytest.mark.parametrize("prefixes", [("", "model."), ("language_model.", "language_model.model.")], ids=str)
@pytest.mark.parametrize("case", OTHERS)
def test_heads_are_compared_whole(tmp_path, case, prefixes):
    other, found = OTHERS[case]
    of_head, of_embedding = prefixes
    tensors = {f"{of_head}lm_head.weight": other, f"{of_embedding}embed_tokens.weight": ROWS}
    save_file(tensors, tmp_path / "model.safetensors")
    assert differing_head(tmp_path) == (None if found is None else of_head + found)
    shards = {"a.safetensors": list(tensors)[:1], "b.safetensors": list(tensors)[1:]}
    (tmp_path / "model.safetensors").unlink()
    for shard, names in shards.items():
        save_file({name: tensors[name] for name in names}, tmp_path / shard)
    index = {"weight_map": {name: shard for shard, names in shards.items() for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert differing_head(tmp_path) == (None if found is None else of_head + found)


def test_towers_have_embeddings_of_their_own(tmp_path):
    tensors = {
        "lm_head.weight": ROWS + 1,
        "model.embed_tokens.weight": ROWS,
        "model.vision_tower.embeddings.weight": ROWS.clone(),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert differing_head(tmp_path) == "lm_head.weight"


@pytest.mark.parametrize("content", [b"", struct.pack("<Q", 1 << 60), struct.pack("<Q", 9) + b"[1, 2, 3]", b"\0" * 9])
def test_what_is_damaged_is_the_loaders_to_name(tmp_path, content):
    assert differing_head(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(content)
    assert differing_head(tmp_path) is None
