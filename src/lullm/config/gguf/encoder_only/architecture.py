"""Encoders in GGUF files: BERT and its kin, NomicBERT, ModernBERT.

`bert` is several families with one arithmetic. The converter cuts RoBERTa's table of positions to the rows that tokens
have, so that all of them begin at row 0. DistilBERT has no table of segments.
"""

from lullm.config.field import Data
from lullm.config.gguf.keys import Architecture, Keys
from lullm.config.gguf.rope import rotated, theta
from lullm.config.gguf.window import layer_types

LABELS, _LAYER = "cls.output.weight", "cls.weight"
"""The matrix of labels, and the layer in front of it."""
_CLS, _MEAN = 2, 1
"""Values of `classifier.pooling_type`."""


def _sizes(keys: Keys) -> Data:
    """What all encoders have. Keys of decoders mean nothing to them."""
    segments = keys.file.tensors.get("token_types.weight")
    return {
        "rms_norm_eps": None,
        "head_dim": None,
        "num_key_value_heads": None,
        "rope_theta": None,
        "type_vocab_size": 0 if segments is None else segments.shape[0],
    }


def _named(keys: Keys, family: str) -> Data:
    """The architecture: with labels if the file holds their matrix. Raises ModelLoadError."""
    labels = keys.file.tensors.get(LABELS)
    if labels is None:
        if keys.has(_LAYER) and family != "ModernBert":  # there it is of the training before
            raise keys.fault(
                f"the tensor {_LAYER} is a head that the converter of this model cuts short ({LABELS} is missing), so "
                "its scores would not be the model's; take the folder with the model's safetensors"
            )
        return {"architectures": [f"{family}Model"]}
    if not keys.has(_LAYER):
        raise keys.fault(
            f"{LABELS} has no layer in front ({_LAYER}), which the converter leaves out for BERT, so scores would not "
            "be the model's; take the folder with the model's safetensors"
        )
    return {"architectures": [f"{family}ForSequenceClassification"], "num_labels": labels.shape[0]}


def _bert(keys: Keys) -> Data:
    positions = keys.file.tensors.get("position_embd.weight")
    if positions is None:
        raise keys.fault("the tensor position_embd.weight is missing")
    eps = keys.need("attention.layer_norm_epsilon")
    sizes = {**_sizes(keys), "layer_norm_eps": eps, "max_position_embeddings": positions.shape[0]}
    if sizes["type_vocab_size"]:
        return {**sizes, **_named(keys, "Bert")}
    return {**sizes, **_named(keys, "DistilBert"), "type_vocab_size": None}


def _nomic_bert(keys: Keys) -> Data:
    if keys.has(LABELS) or keys.has(_LAYER):
        raise keys.fault(
            "nomic-bert with labels is not supported in GGUF; take the folder with the model's safetensors"
        )
    eps = keys.need("attention.layer_norm_epsilon")
    return {**_sizes(keys), **rotated(keys, "NomicBertModel"), "layer_norm_eps": eps, "rope_theta": theta(keys)}


def _modern_bert(keys: Keys) -> Data:
    """The first of three layers sees all tokens. Of a file that does not say it, labels are read from the mean.

    The converter writes `norm_eps` under the name of another kind of norm, if config.json has no `layer_norm_eps`.
    """
    eps = keys.number("attention.layer_norm_epsilon") or keys.need("attention.layer_norm_rms_epsilon")
    window = keys.number("attention.sliding_window")
    kinds = layer_types(keys, 3, first_is_full=True)
    if window is None:
        kinds = ["full_attention"] * keys.num_layers
    pooling = keys.get("classifier.pooling_type", _MEAN)
    if pooling not in (_CLS, _MEAN):
        raise keys.fault(
            f"classifier.pooling_type {pooling!r:.40} is not supported, only {_MEAN} (mean) and {_CLS} (cls)"
        )
    return {
        **_sizes(keys),
        **rotated(keys, "ModernBertModel"),
        **_named(keys, "ModernBert"),
        "type_vocab_size": None,
        "norm_eps": eps,
        "global_rope_theta": theta(keys),
        "local_rope_theta": theta(keys, "rope.freq_base_swa"),
        "local_attention": window,
        "layer_types": kinds,
        "classifier_pooling": "cls" if pooling == _CLS else "mean",
        "classifier_bias": keys.has("cls.bias"),
        "hidden_activation": keys.get("hidden_activation"),
    }


ENCODERS: dict[str, Architecture] = {
    "bert": Architecture(_bert),
    "modern-bert": Architecture(_modern_bert),
    "nomic-bert": Architecture(_nomic_bert),
}
