"""modules.json and its folders: what is implemented is read in both spellings, the rest is refused by its name."""

import json

import pytest

from lullm.config.pooling.pooler import PoolerConfig, TokenScore
from lullm.config.pooling.sentence_transformers import read_modules
from lullm.errors import ModelLoadError

FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write(folder, *names, settings=None, **configs):
    """A module's class for each name, in a folder of that name; `configs`: what stands in the folder."""
    modules = [
        {"idx": i, "name": str(i), "path": name if i else "", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for name, config in configs.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config))
    if settings is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


def flags(*chosen):
    return {f"pooling_mode_{name}": name in chosen for name in FLAGS} | {"word_embedding_dimension": 8}


def test_no_modules(tmp_path):
    assert read_modules(tmp_path) is None


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (flags("lasttoken"), "last"),
        (flags("cls_token"), "cls"),
        (flags("mean_tokens"), "mean"),
        ({"pooling_mode": "lasttoken", "embedding_dimension": 8}, "last"),
        ({"pooling_mode": "mean", "include_prompt": True}, "mean"),
    ],
)
def test_pooling(tmp_path, config, kind):
    write(tmp_path, "Transformer", "Pooling", Pooling=config)
    assert read_modules(tmp_path) == PoolerConfig("embed", kind, "none")
    write(tmp_path, "Transformer", "Pooling", "Normalize", Pooling=config)
    assert read_modules(tmp_path) == PoolerConfig("embed", kind, "normalize")


@pytest.mark.parametrize(
    ("settings", "activation"),
    [(None, "sigmoid"), ({"activation_fn": "torch.nn.modules.linear.Identity"}, "none"), ({"prompts": {}}, "sigmoid")],
)
def test_logit_score(tmp_path, settings, activation):
    write(
        tmp_path, "Transformer", "LogitScore", settings=settings, LogitScore={"true_token_id": 3, "false_token_id": 2}
    )
    assert read_modules(tmp_path) == PoolerConfig("classify", "last", activation, TokenScore(3, 2))


@pytest.mark.parametrize(
    ("names", "configs", "message"),
    [
        (("Transformer", "Pooling", "Normalize", "Dense"), {"Pooling": flags("lasttoken")}, "Dense are not supported"),
        (("Transformer", "Pooling", "WordWeights"), {"Pooling": flags("lasttoken")}, "WordWeights are not supported"),
        (("WordEmbeddings", "Pooling"), {}, "must be a Transformer, not .'WordEmbeddings'"),
        (("Transformer",), {}, "modules Transformer are not supported"),
        (("Transformer", "Pooling"), {}, "is missing, which modules.json needs"),
        (("Transformer", "Pooling"), {"Pooling": flags("max_tokens")}, r"pooling \['max'\] is not supported"),
        (("Transformer", "Pooling"), {"Pooling": flags("cls_token", "mean_tokens")}, r"\['cls', 'mean'\]"),
        (("Transformer", "Pooling"), {"Pooling": {"pooling_mode": ["mean"]}}, "is not supported"),
        (("Transformer", "LogitScore"), {"LogitScore": {"true_token_id": -1}}, "must be token ids"),
        (("Transformer", "LogitScore"), {"LogitScore": {}}, "no true_token_id"),
    ],
)
def test_refusals(tmp_path, names, configs, message):
    write(tmp_path, *names, **configs)
    with pytest.raises(ModelLoadError, match=message):
        read_modules(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "cannot be read as JSON"),
        ("{}", "must list objects"),
        ('[{"type": "x.Transformer"}]', "must list objects"),
        ('[{"type": "x.Transformer", "path": ".."}]', "outside its own"),
        ('[{"type": "x.Transformer", "path": "/etc"}]', "outside its own"),
    ],
)
def test_damaged_modules(tmp_path, text, message):
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ModelLoadError, match=message):
        read_modules(tmp_path)


def test_other_settings(tmp_path, caplog):
    config = flags("lasttoken")
    write(tmp_path, "Transformer", "Pooling", settings={"default_prompt_name": "query"}, Pooling=config)
    with caplog.at_level("WARNING", logger="lullm"):
        assert read_modules(tmp_path) is not None
    assert "the prompt 'query' is not put before texts" in caplog.text
    write(tmp_path, "Transformer", "LogitScore", settings={"activation_fn": "x.Tanh"}, LogitScore={"true_token_id": 3})
    with pytest.raises(ModelLoadError, match="the activation 'x.Tanh' is not supported"):
        read_modules(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(ModelLoadError, match="do_lower_case is not supported"):
        read_modules(tmp_path)


@pytest.mark.parametrize(("kind", "is_said"), [("mean_tokens", True), ("lasttoken", False)])
def test_rows_of_an_instruction_that_should_not_count(tmp_path, caplog, kind, is_said):
    write(tmp_path, "Transformer", "Pooling", Pooling=flags(kind) | {"include_prompt": False})
    with caplog.at_level("WARNING", logger="lullm"):
        read_modules(tmp_path)
    assert ("include_prompt is false" in caplog.text) == is_said
