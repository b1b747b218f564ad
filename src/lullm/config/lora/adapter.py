"""AdapterConfig: what the `adapter_config.json` of a LoRA adapter says, checked once."""

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lullm.config.field import shown
from lullm.config.json_file import read_object
from lullm.errors import ModelLoadError

T = TypeVar("T")
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_MOST_RANK = 1 << 14
_MOST_REPEATS = 3
"""In a pattern. A folder may come from anyone, and some patterns take hours for one name."""

_REFUSED = {
    "use_dora": "DoRA also scales the weights",
    "use_qalora": "QALoRA pools the inputs",
    "modules_to_save": "layers are trained whole",
    "trainable_token_indices": "rows of the embedding are trained",
    "target_parameters": "parameters of experts are adapted",
    "layer_replication": "layers are repeated",
    "alora_invocation_tokens": "it begins at certain tokens",
    "lora_bias": "the adapter has biases",
    "arrow_config": "several adapters are mixed per token",
    "use_bdlora": "matrices are block-diagonal",
    "monteclora_config": "weights are drawn",
}
"""Keys that change the arithmetic -> what a value other than null, false or nothing means."""
_REWRITES = ("pissa", "olora", "corda", "lora_ga")
"""Initialisations that change the weights under the adapter."""
_READ = frozenset(
    ("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias", "init_lora_weights",
     "target_modules")
)  # fmt: skip
_WITHOUT_EFFECT = frozenset(
    ("task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version",
     "lora_dropout", "fan_in_fan_out", "exclude_modules", "layers_to_transform", "layers_pattern", "loftq_config",
     "eva_config",
     "corda_config", "lora_ga_config", "megatron_config", "megatron_core", "runtime_config", "qalora_group_size",
     "ensure_weight_tying", "velora_config")
)  # fmt: skip
"""Keys about the training, or about which layers have tensors."""


def adapter_digest(folder: Path) -> bytes:
    """A digest of an adapter's content, 16 bytes. Reads its files: 0.1 s for 100 MB. Raises ModelLoadError."""
    digest = hashlib.blake2b(digest_size=16, person=b"lullm-adapter")
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        try:
            with open(folder / name, "rb") as file:
                digest.update(hashlib.file_digest(file, hashlib.blake2b).digest())
        except OSError as error:
            raise ModelLoadError(f"{folder}: cannot read {name}: {error.strerror}") from None
    return digest.digest()


def read_settings(folder: Path, kind: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """What `parse` makes of the settings in a PEFT folder. `kind`: of adapter, as errors name it.

    Raises:
        ModelLoadError: no such folder or file, or that of `parse`, with the file's path before it.
    """
    path = folder / CONFIG_FILE
    try:
        data = read_object(path)
    except FileNotFoundError:
        what = f"has no {CONFIG_FILE}" if folder.is_dir() else "is no folder"
        raise ModelLoadError(
            f"{folder} {what}; a {kind} adapter is a local folder in PEFT's form, with {CONFIG_FILE} and {WEIGHTS_FILE}"
        ) from None
    try:
        return parse(data)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The settings of one adapter.

    Args:
        rank, alpha: of layers that no pattern names. The factor on a layer's product is alpha / rank.
        is_rank_stabilised: it is alpha / sqrt(rank) (https://arxiv.org/abs/2312.03732).
        ranks, alphas: by pattern (a regular expression for the end of a layer's name).
        targets: ends of names of layers that must have tensors; empty: not known.
    """

    rank: int
    alpha: float
    is_rank_stabilised: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    targets: tuple[str, ...] = ()

    @classmethod
    def from_folder(cls, folder: Path) -> "AdapterConfig":
        """Read the file of a PEFT folder.

        Raises:
            ModelLoadError: no such folder or file, a key is invalid, or asks for arithmetic that lullm lacks.
        """
        return read_settings(folder, "LoRA", cls._from_dict)

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> "AdapterConfig":
        kind = data.get("peft_type")
        if kind != "LORA":
            hint = "; give it as a prompt_adapter_request" * (kind in ("PROMPT_TUNING", "P_TUNING"))
            raise ModelLoadError(f"peft_type is {shown(kind)}, and a LoRA adapter's is LORA{hint}")
        for key, meaning in _REFUSED.items():
            if data.get(key):
                raise ModelLoadError(f"{key} is {shown(data[key])}: {meaning}, which lullm lacks; {_MERGE}")
        if data.get("bias") not in (None, "none"):
            raise ModelLoadError(f"bias is {shown(data['bias'])}: biases are trained, which lullm lacks; {_MERGE}")
        start = data.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_REWRITES):
            raise ModelLoadError(
                f"init_lora_weights is {shown(start)}: the adapter belongs to changed weights; save it with "
                "path_initial_model_for_weight_conversion, which makes it one for the original weights"
            )
        known = _READ | _WITHOUT_EFFECT | _REFUSED.keys()
        for key in sorted(data.keys() - known):
            if data[key]:
                raise ModelLoadError(f"nothing is known about {shown(key)}, which is {shown(data[key])}; {_MERGE}")
        return cls(
            rank=_rank("r", data.get("r")),
            alpha=_alpha("lora_alpha", data.get("lora_alpha")),
            is_rank_stabilised=_switch(data, "use_rslora"),
            ranks={_pattern(key): _rank("rank_pattern", value) for key, value in _object(data, "rank_pattern")},
            alphas={_pattern(key): _alpha("alpha_pattern", value) for key, value in _object(data, "alpha_pattern")},
            targets=_targets(data.get("target_modules")),
        )

    def rank_of(self, layer: str) -> int:
        """The rank in the layer of this name (in the model, without PEFT's prefix)."""
        return _matching(self.ranks, layer, self.rank)

    def factor_of(self, layer: str) -> float:
        """The factor on the product of the layer."""
        rank, alpha = self.rank_of(layer), _matching(self.alphas, layer, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)


_MERGE = "merge the adapter into its model (merge_and_unload, save_pretrained) and serve that"


def _matching(patterns: Mapping[str, T], layer: str, default: T) -> T:
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", layer)), default)


def _rank(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_RANK:
        raise ModelLoadError(f"{key} must be an integer from 1 to {_MOST_RANK}, not {shown(value)}")
    return value


def _alpha(key: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ModelLoadError(f"{key} must be a number, not {shown(value)}")
    return float(value)


def _switch(data: dict[str, Any], key: str) -> bool:
    value = data.get(key)
    if not isinstance(value, bool | None):
        raise ModelLoadError(f"{key} must be true or false, not {shown(value)}")
    return bool(value)


def _object(data: dict[str, Any], key: str) -> Any:
    value = data.get(key) or {}
    if not isinstance(value, dict):
        raise ModelLoadError(f"{key} must be an object, not {shown(value)}")
    return value.items()


def _pattern(key: str) -> str:
    try:
        re.compile(key)
    except (re.error, RecursionError, OverflowError) as error:
        raise ModelLoadError(f"{shown(key)} is no pattern: {error}") from None
    if len(re.findall(r"[*+{]", key)) > _MOST_REPEATS or re.search(r"\)[*+{]", key):
        raise ModelLoadError(f"{shown(key)} repeats too much for a pattern of names; name the layers one by one")
    return key


def _targets(value: Any) -> tuple[str, ...]:
    """Names of layers; a single text is a pattern, of which nothing is expected."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    if isinstance(value, str | None):
        return ()
    raise ModelLoadError(f"target_modules must be a list of names, not {shown(value)}")
