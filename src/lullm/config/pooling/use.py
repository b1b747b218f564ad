"""The use of a model: next tokens, pooling, or both. The folder determines it, and the user may change it.

the folder                                  it gives
modules.json with Pooling                   embeddings; with Dense layers their results
modules.json with LogitScore                scores of pairs, and next tokens
architecture ...ForSequenceClassification   classes; with one label also scores of pairs
architecture ...ForTokenClassification      classes of each token
architecture ...For(Process)RewardModel     a score, or probabilities of the steps of a solution
anything else                               next tokens
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from lullm.config.field import optional_object, positive_int, shown
from lullm.config.gguf.encoder_only.pooling import pooler_of
from lullm.config.gguf.file import is_gguf, read_gguf
from lullm.config.json_file import overridden
from lullm.config.mistral.layout import has_config, read_config
from lullm.config.model import ModelConfig
from lullm.config.pooling.architecture import Labels
from lullm.config.pooling.encoder_only import of_encoder
from lullm.config.pooling.pooler import Classifier, DenseLayers, PairForm, PoolerConfig, TokenScore
from lullm.config.pooling.sentence_transformers import check_dense, read_activation, read_modules
from lullm.errors import ConfigError, ModelLoadError
from lullm.types.pooling.params import PoolingActivation

Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "embed", "rerank"]

STEP_TAG = "<extra_0>"
"""The token after each step of a solution, in the vocabulary of Qwen2.5-Math-PRM."""

_PROBLEMS: dict[str | None, PoolingActivation] = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """How the user wants a model to be used, and what its tokenizer says of it.

    Args:
        token_id: of a token as the vocabulary spells it; None: it has none.
        has_pair_template: the chat template reads queries and documents.
    """

    runner: Runner = "auto"
    convert: Convert = "auto"
    token_id: Callable[[str], int | None] = lambda word: None
    has_pair_template: bool = False

    @property
    def pair_form(self) -> PairForm:
        """How pairs are read, where the model does not say."""
        return "template" if self.has_pair_template else "joined"


def with_use(
    model: ModelConfig, folder: Path, use: Use, overrides: Mapping[str, Any] = MappingProxyType({})
) -> ModelConfig:
    """The config of a model that pools as its folder or the user says. `overrides`: of keys of config.json.

    Raises:
        ConfigError: the model cannot be used so.
        ModelLoadError: a file needs a feature that is not implemented.
    """
    if use.runner == "generate":
        _check_only_generates(model, use.convert)
        return model
    data = overridden(read_config(folder) if has_config(folder) else {}, overrides)
    stated = pooler_of(read_gguf(folder)) if is_gguf(folder) else read_modules(folder)
    pooler = _pooler(model, data, stated, use)
    if pooler is None:
        return model
    if model.family.encoder_only is not None:
        pooler = of_encoder(pooler, model.family.encoder_only, is_stated=pooler is stated)
    _check_head(pooler, model)
    if pooler.task == "embed":
        size = dataclasses.replace(model, pooler=pooler).pooled_size
        pooler = dataclasses.replace(pooler, dimensions=_read_dimensions(data, size))
    elif pooler.can_score and pooler.pair_form is None:
        pooler = dataclasses.replace(pooler, pair_form=use.pair_form)
    only_embeds = stated is not None and stated.task == "embed" and use.convert == "auto"
    generates = model.generates and use.runner != "pooling" and not only_embeds
    return dataclasses.replace(model, pooler=pooler, generates=generates)


def _check_only_generates(model: ModelConfig, convert: Convert) -> None:
    """Raises ConfigError: the model cannot give next tokens alone, or shall not."""
    if convert != "auto":
        raise ConfigError(f"convert={convert!r} pools, which runner='generate' excludes; leave one of them out")
    if not model.generates:
        raise ConfigError("runner='generate': the checkpoint has no head for next tokens; leave runner out")


def _pooler(model: ModelConfig, data: dict[str, Any], stated: PoolerConfig | None, use: Use) -> PoolerConfig | None:
    """What the model pools; None: nothing. `stated`: what its folder says."""
    if use.convert == "rerank":
        return _reranker(model, use)
    if use.convert == "embed":
        return _embedder(model, stated)
    if stated is not None and isinstance(stated.head, Classifier):
        return stated
    if model.labels is not None:
        return _of_labels(model.labels, data, use.token_id)
    if stated is None and (use.runner == "pooling" or not model.generates):
        return PoolerConfig("embed")
    return stated


def _embedder(model: ModelConfig, stated: PoolerConfig | None) -> PoolerConfig:
    if model.labels is not None:
        raise ConfigError("convert='embed' is for models of next tokens; this one has labels, see LLM.classify, score")
    return stated if stated is not None and stated.task == "embed" else PoolerConfig("embed")


def _check_head(pooler: PoolerConfig, model: ModelConfig) -> None:
    """Raises ModelLoadError: the modules behind the pooled rows do not fit the model."""
    if isinstance(pooler.head, TokenScore):
        _check_tokens(pooler.head, model)
    if isinstance(pooler.head, DenseLayers):
        check_dense(pooler.head, model.hidden_size)
        is_linear = all(layer.activation is None for layer in pooler.head.layers)
        if pooler.kind == "mean" and not is_linear and model.family.encoder_only is None:
            raise ModelLoadError(
                f"modules.json: of {model.architecture} a mean is summed chunk by chunk, so a Dense module behind it "
                "may have no activation; take a model that pools the last token, or an encoder"
            )


def _of_labels(labels: Labels, data: dict[str, Any], token_id: Callable[[str], int | None]) -> PoolerConfig:
    if labels.form == "process_reward":
        head = Classifier(labels.num, has_bias=True, has_hidden_layer=True)
        return PoolerConfig("token_classify", "all", "softmax", head, step_tag_id=token_id(STEP_TAG))
    if labels.form == "reward":
        return PoolerConfig("classify", "last", "none", Classifier(labels.num, has_bias=True, has_hidden_layer=True))
    activation = _label_activation(labels.num, data)
    if labels.form == "token":
        return PoolerConfig("token_classify", "all", activation, Classifier(labels.num, has_bias=True))
    return PoolerConfig("classify", "last", activation, Classifier(labels.num))


def _reranker(model: ModelConfig, use: Use) -> PoolerConfig:
    ids = [use.token_id(word) for word in ("yes", "no")]
    if ids[0] is None or ids[1] is None or not model.generates:
        raise ConfigError(
            "convert='rerank' scores by the next token, 'yes' or 'no'; this model has no head or no such tokens"
        )
    return PoolerConfig(
        "classify",
        "last",
        "sigmoid",
        TokenScore(ids[0], ids[1]),
        pair_form="template" if use.has_pair_template else "qwen3_reranker",
    )


def _check_tokens(head: TokenScore, model: ModelConfig) -> None:
    if not model.generates:
        raise ModelLoadError("modules.json: LogitScore reads the logits of next tokens, for which there is no head")
    for token in (head.true_token_id, head.false_token_id or 0):
        if token >= model.vocab_size:
            raise ModelLoadError(f"1_LogitScore/config.json names the token {token}, of {model.vocab_size} tokens")


def _label_activation(num_labels: int, data: dict[str, Any]) -> PoolingActivation:
    """The activation that the file states in sentence-transformers' or transformers' form; else probabilities."""
    stated = optional_object(data, "sentence_transformers").get("activation_fn")
    stated = stated or data.get("sbert_ce_default_activation_function")
    activation = read_activation(stated, "config.json")
    if activation is not None:
        return activation
    problem = data.get("problem_type")
    if problem is not None and problem not in _PROBLEMS:
        raise ModelLoadError(
            f"config.json: problem_type {shown(problem)} is not one of {', '.join(map(str, _PROBLEMS))}"
        )
    return _PROBLEMS.get(problem, "softmax" if num_labels > 1 else "sigmoid")


def _read_dimensions(data: dict[str, Any], pooled_size: int) -> tuple[int, ...] | None:
    stated = data.get("matryoshka_dimensions")
    if stated is None:
        return (pooled_size,) if data.get("is_matryoshka") is False else None
    if not isinstance(stated, list) or not stated:
        raise ModelLoadError(f"config.json: matryoshka_dimensions must be a list of sizes, not {shown(stated)}")
    return tuple(
        positive_int({"matryoshka_dimensions": size}, "matryoshka_dimensions", None, pooled_size) for size in stated
    )
