"""Models of other packages: the example of `docs/models.md`, found by its entry point, and what is refused."""

import json
import re
import sys
from pathlib import Path

import pytest
from kit.model.golden import SIZES, PagedRun, assert_close, golden_logits, load_model, prompt, save_model

from lullm import register_model
from lullm.config.family.table import OUTSIDE, is_known
from lullm.config.model import ModelConfig
from lullm.errors import ConfigError, ModelLoadError
from lullm.models import registry
from lullm.ops.selection import TORCH_CPU_OPS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
NAME = "MyForCausalLM"


def example(language):
    """The first block of this language in its part of the documentation."""
    [part] = re.findall(r"^## Models outside the tree\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.S | re.M)
    return re.search(rf"```{language}\n(.*?)```", part, re.S)[1]


def install(folder, source, entry_point):
    """A package in `folder`, as an installer leaves it."""
    for name, text in {
        "my_package/__init__.py": "",
        "my_package/model.py": source,
        "my_package-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n",
        "my_package-1.0.dist-info/entry_points.txt": f"[lullm.models]\n{entry_point}\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture(autouse=True)
def nothing_registered(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield
    OUTSIDE.pop(NAME, None)
    registry._OUTSIDE_BUILDERS.pop(NAME, None)
    for module in ("my_package", "my_package.model"):
        sys.modules.pop(module, None)


def point():
    line = example("toml").splitlines()[1]
    assert line.startswith(NAME)
    return line.replace('"', "")


def test_the_example_of_the_documentation(tmp_path):
    install(tmp_path, example("python"), point())
    folder = tmp_path / "model"
    theirs = save_model(folder, "Qwen3", {})
    config = {**SIZES, "architectures": [NAME], "logit_multiplier": 0.5, "model_type": "mine"}
    (folder / "config.json").write_text(json.dumps(config))
    logits = PagedRun(load_model(folder), TORCH_CPU_OPS, 1).step([(0, prompt(1))])
    assert_close(logits, golden_logits(theirs, prompt(1)) * 0.5)


def test_its_keys_are_checked(tmp_path):
    install(tmp_path, example("python"), point())
    assert is_known(NAME)
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 8, "architectures": [NAME]}
    with pytest.raises(ModelLoadError, match=f"clip_qkv 8.*not implemented for {NAME}"):
        ModelConfig.from_dict(sizes | {"clip_qkv": 8})
    llama = sizes | {"architectures": ["LlamaForCausalLM"], "logit_multiplier": 3.0}
    assert ModelConfig.from_dict(llama).unknown_keys == ("logit_multiplier",), "a package changes no other family"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def register(): raise OSError('no disk')", "failed: OSError.'no disk'"),
        ("def other(): pass", "failed: AttributeError"),
        ("def register(): pass", "has not called register_model"),
    ],
)
def test_an_entry_point_that_fails_is_named(tmp_path, source, message):
    install(tmp_path, source, point())
    with pytest.raises(ModelLoadError, match=f"MyForCausalLM = my_package.model:register of lullm.models {message}"):
        is_known(NAME)


def test_own_architectures_stay():
    with pytest.raises(ConfigError, match="lullm has Qwen3ForCausalLM itself"):
        register_model("Qwen3ForCausalLM", registry.builder_of("LlamaForCausalLM"))


def test_a_second_registration_replaces_the_first():
    first, second = registry.builder_of("LlamaForCausalLM"), registry.builder_of("Qwen3ForCausalLM")
    for builder in (first, second):
        register_model(NAME, builder)
        assert registry._OUTSIDE_BUILDERS[NAME] is builder
