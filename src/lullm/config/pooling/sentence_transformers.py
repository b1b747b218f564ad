"""The files of sentence-transformers beside a model: modules.json, and a config.json for each module.

They tell which rows are pooled, which layers come behind, whether the result is normalized, or which tokens' logits are
a score. A module that is not implemented is refused by its name. Prompts are not put before texts: the caller does
that, as with vLLM.
"""

import json
import re
from pathlib import Path
from typing import Any, Literal

from lullm.config.field import MOST_HIDDEN, boolean, positive_int, shown
from lullm.config.json_file import optional_object, read_object, read_text
from lullm.config.pooling.pooler import DenseLayer, DenseLayers, PoolerConfig, TokenScore
from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.types.arithmetic import Activation
from lullm.types.pooling.params import PoolingActivation, PoolingKind

logger = get_logger(__name__)

_KINDS: dict[str, PoolingKind] = {"lasttoken": "last", "cls": "cls", "mean": "mean"}
_FLAGS = {
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""For files that have a flag for each mode."""
_ACTIVATIONS: dict[str, PoolingActivation] = {"Identity": "none", "Sigmoid": "sigmoid"}
_OF_DENSE: dict[str, Activation | Literal["tanh"] | None] = {
    "Identity": None, "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu", "SiLU": "silu",
}  # fmt: skip
"""The activations that a layer may have, by torch's classes."""
DENSE_FOLDER = re.compile(r"\d{1,4}_Dense")


def read_modules(folder: Path) -> PoolerConfig | None:
    """The pooling that `folder/modules.json` describes; None: there is no such file.

    Raises:
        ModelLoadError: a file is damaged, or needs a feature that is not implemented.
    """
    modules = _modules(folder / "modules.json")
    if modules is None:
        return None
    names = [name for name, _ in modules]
    paths = [folder / path for _, path in modules]
    if names[:1] != ["Transformer"]:
        raise ModelLoadError(f"{folder}/modules.json: the first module must be a Transformer, not {shown(names[:1])}")
    _check_transformer(paths[0])
    settings = optional_object(folder / "config_sentence_transformers.json")
    if settings.get("default_prompt_name") is not None:
        logger.warning(
            "%s: the prompt %s is not put before texts by itself; put it there where the model wants it",
            folder,
            shown(settings["default_prompt_name"]),
        )
    match names[1:]:
        case ["LogitScore"]:
            activation = read_activation(settings.get("activation_fn"), "config_sentence_transformers.json")
            return PoolerConfig("classify", "last", activation or "sigmoid", _read_tokens(paths[1]))
        case ["Pooling", *layers, "Normalize"] | ["Pooling", *layers] if set(layers) <= {"Dense"}:
            dense = DenseLayers(tuple(map(_read_dense, paths[2 : 2 + len(layers)]))) if layers else None
            is_normalized = names[-1] == "Normalize"
            return PoolerConfig("embed", _read_kind(paths[1]), "normalize" if is_normalized else "none", dense)
    raise ModelLoadError(
        f"{folder}/modules.json: the modules {', '.join(names)} are not supported, only a Transformer with Pooling, "
        "maybe with Dense and Normalize in this order, or with LogitScore"
    )


def read_activation(stated: Any, where: str) -> PoolingActivation | None:
    """The activation of a class of torch, such as 'torch.nn.modules.activation.Sigmoid'; None: none is stated."""
    if stated is None:
        return None
    name = stated.rpartition(".")[2] if isinstance(stated, str) else stated
    if name not in _ACTIVATIONS:
        raise ModelLoadError(f"{where}: the activation {shown(stated)} is not supported, only Identity and Sigmoid")
    return _ACTIVATIONS[name]


def _modules(path: Path) -> list[tuple[str, str]] | None:
    """(class, folder) of each module in order."""
    try:
        entries = json.loads(read_text(path))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ModelLoadError(f"{path} must list objects with type and path")
    modules = []
    for entry in entries:
        kind, place = entry.get("type"), entry.get("path")
        if not isinstance(kind, str) or not isinstance(place, str):
            raise ModelLoadError(f"{path} must list objects with type and path")
        if place and (place == ".." or place != Path(place).name):
            raise ModelLoadError(f"{path} names a folder outside its own: {place!r}")
        modules.append((kind.rpartition(".")[2], place))
    return modules


def _read_kind(folder: Path) -> PoolingKind:
    path = folder / "config.json"
    data = _required_object(path)
    stated = data.get("pooling_mode")
    modes = [stated] if stated is not None else [mode for flag, mode in _FLAGS.items() if data.get(flag) is True]
    if len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in _KINDS:
        raise ModelLoadError(f"{path}: the pooling {shown(modes)} is not supported, only one of {', '.join(_KINDS)}")
    if modes == ["mean"] and data.get("include_prompt") is False:
        logger.warning("%s: include_prompt is false, and here the rows of an instruction count in the mean", path)
    return _KINDS[modes[0]]


_DENSE_DEFAULTS = {
    "use_residual": False, "module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding",
}  # fmt: skip


def _read_dense(folder: Path) -> DenseLayer:
    path = folder / "config.json"
    data = _required_object(path)
    if not DENSE_FOLDER.fullmatch(folder.name):
        raise ModelLoadError(f"{folder}: a Dense module's folder must be named as 2_Dense is, a number in front")
    for key, default in _DENSE_DEFAULTS.items():
        if data.get(key, default) not in (None, default):
            raise ModelLoadError(f"{path}: {key} {shown(data[key])} is not supported, only {shown(default)}")
    stated = data.get("activation_function", "torch.nn.modules.activation.Tanh")
    name = stated.rpartition(".")[2] if isinstance(stated, str) else stated
    if name not in _OF_DENSE:
        raise ModelLoadError(
            f"{path}: activation_function {shown(stated)} is not supported, only {', '.join(_OF_DENSE)}"
        )
    return DenseLayer(
        folder.name,
        positive_int(data, "in_features", most=MOST_HIDDEN),
        positive_int(data, "out_features", most=MOST_HIDDEN),
        boolean(data, "bias", True),
        _OF_DENSE[name],
    )


def check_dense(dense: DenseLayers, hidden_size: int) -> None:
    """Check that each layer reads what comes before it. Raises ModelLoadError."""
    size = hidden_size
    for layer in dense.layers:
        if layer.in_features != size:
            raise ModelLoadError(
                f"{layer.folder}/config.json: in_features is {layer.in_features}, and what comes before has {size} "
                "elements; fetch the model folder again"
            )
        size = layer.out_features


def _read_tokens(folder: Path) -> TokenScore:
    path = folder / "config.json"
    data = _required_object(path)
    ids = [data.get("true_token_id"), data.get("false_token_id")]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids if i is not None):
        raise ModelLoadError(f"{path}: true_token_id and false_token_id must be token ids, not {shown(ids)}")
    if ids[0] is None:
        raise ModelLoadError(f"{path} has no true_token_id")
    return TokenScore(ids[0], ids[1])


def _check_transformer(folder: Path) -> None:
    if optional_object(folder / "sentence_bert_config.json").get("do_lower_case"):
        raise ModelLoadError(f"{folder}/sentence_bert_config.json: do_lower_case is not supported")


def _required_object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        raise ModelLoadError(f"{path} is missing, which modules.json needs; fetch the model folder again") from None
