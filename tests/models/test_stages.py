"""Every family cut into stages, one after the other and without an engine: the logits of transformers."""

from dataclasses import replace

import pytest
import torch
from kit.model.families import CASES, variants
from kit.model.golden import PagedRun, assert_close, golden_logits, load_model, prompt, save_model

from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.config.parallel.cut import check_cut, first_layers
from lullm.errors import ConfigError
from lullm.models.stages import even_cut, layer_bytes, with_stages
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.types.layer_kind import FullAttention, SharedAttention
from lullm.types.parallel.stage import PipelineStage

TOKENS = prompt(1, 40)


def stage_runs(folder, num_layers):
    models = [load_model(folder, stage=PipelineStage(rank, num_layers)) for rank in range(len(num_layers))]
    names = [{name for name, _ in model.named_parameters()} for model in models]
    shared = set.intersection(*names)
    allowed = {"model.embed_tokens.weight"}  # where it is the head, too
    if models[0].config.family.layer_inputs is not None:
        allowed |= {"model.per_layer_projection_norm.weight", *models[0].cuts}
    assert shared <= allowed, "each has its own"
    return [PagedRun(model, TORCH_CPU_OPS, 1) for model in models]


@pytest.mark.parametrize(("family", "name", "options"), variants(2, 1))
def test_two_stages(tmp_path, family, name, options):
    theirs = save_model(tmp_path, family, options)
    config = ModelConfig.from_folder(tmp_path)
    cut = even_cut([1] * config.num_hidden_layers, 2, first_layers(config))
    if cut is None:
        assert config.num_hidden_layers == 1 or first_layers(config) == [0]
        return
    assert_close(staged_logits(stage_runs(tmp_path, cut)), golden_logits(theirs, TOKENS))


def staged_logits(runs):
    """Of a prompt in two chunks."""
    logits = []
    for tokens in (TOKENS[:25], TOKENS[25:]):
        stream = None
        for run in runs:
            stream = run.step([(0, tokens)], stream=stream)
        logits.append(stream)
    return torch.cat(logits)


def test_stages_have_their_part_of_what_layers_read_of_tokens(tmp_path):
    """Gemma 4, with and without layers that share keys and values."""
    save_model(tmp_path, "Gemma4", CASES["Gemma4"].variants["shared keys and values, wider MLPs (E2B)"])
    config = ModelConfig.from_folder(tmp_path)
    assert first_layers(config) == [0, 1], "layers 1 and 2 are those that the last three share"
    with pytest.raises(ConfigError, match="pipeline_layers=3,3: no stage can begin with layer 3 .* up to 1"):
        check_cut(config, (3, 3))
    theirs = save_model(tmp_path, "Gemma4", CASES["Gemma4"].variants["plain, one wide kv head"])
    runs = stage_runs(tmp_path, (1, 4, 2))
    widths = [run.model.model.embed_tokens_per_layer.weight.shape[1] for run in runs]
    assert widths == [1 * 8, 4 * 8, 2 * 8]
    assert_close(staged_logits(runs), golden_logits(theirs, TOKENS))


def test_even_cuts():
    assert even_cut([1] * 4, 2, range(4)) == (2, 2)
    assert even_cut([1, 1, 1, 3], 2, range(4)) == (3, 1)
    assert even_cut([2] * 5, 3, range(5)) == (1, 2, 2)
    assert even_cut([1] * 4, 5, range(4)) is None
    assert even_cut([1] * 4, 2**63, range(4)) is None, "not after as many rounds"
    assert even_cut([1] * 6, 2, [0, 1, 5]) == (1, 5), "the cut in the middle is not allowed"


def test_layers_of_one_stage_are_all(tmp_path):
    save_model(tmp_path, "Llama", next(iter(CASES["Llama"].variants.values())))
    model = ModelConfig.from_folder(tmp_path)
    wish = EngineConfig(model=str(tmp_path), pipeline_layers=str(model.num_hidden_layers - 1))
    with pytest.raises(ConfigError, match="the model has"):
        with_stages(wish.resolve(model), model)


def test_the_head_counts_as_layers(tmp_path):
    save_model(tmp_path, "Llama", next(iter(CASES["Llama"].variants.values())))
    config = replace(ModelConfig.from_folder(tmp_path), vocab_size=100_000)
    first, *_, last = layer_bytes(config)
    assert last == first + config.hidden_size * 100_000 * 2


def test_no_cut_between_layers_that_share_keys(tmp_path):
    save_model(tmp_path, "Llama", next(iter(CASES["Llama"].variants.values())))
    full = FullAttention()
    kinds = (full, full, full, SharedAttention(1), SharedAttention(2))
    config = ModelConfig.from_folder(tmp_path)
    config = replace(config, layer_kinds=kinds)
    assert first_layers(config) == [0, 1]
    with pytest.raises(ConfigError, match="no stage can begin with layer 2 .* up to 1"):
        check_cut(config, (2, 3))
    with pytest.raises(ConfigError, match="are 4 layers; the model has 5"):
        check_cut(config, (2, 2))
