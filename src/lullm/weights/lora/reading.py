"""Reads a LoRA adapter from PEFT's folder: the matrices of all its layers, as the places of a model hold them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lullm.config.lora.adapter import WEIGHTS_FILE, AdapterConfig
from lullm.errors import ModelLoadError
from lullm.weights.lora.layers import LoraLayer, adapter_rules
from lullm.weights.reading.files import damaged
from lullm.weights.rule import WeightRules

_NAME = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])\.weight")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class LayerAdapter:
    """The adapter of one layer with C parts: `a [C, R, in]`, `b [R, out]`, and the rank of each part, at most R."""

    a: Tensor
    b: Tensor
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter on the host, by the names of the model's layers. Layers without one are left out."""

    layers: Mapping[str, LayerAdapter]

    @property
    def num_bytes(self) -> int:
        return sum(layer.a.nbytes + layer.b.nbytes for layer in self.layers.values())


@dataclass(slots=True)
class _Pair:
    """Both matrices of a checkpoint's layer, once they are read. `path`: its name in the checkpoint."""

    path: str
    a: Tensor | None = None
    b: Tensor | None = None


@dataclass(slots=True)
class _Found:
    """What a folder holds: pairs by canonical names, and what is wrong."""

    pairs: dict[str, _Pair] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def read_adapter(
    folder: Path, layers: Mapping[str, LoraLayer], rules: WeightRules, max_rank: int, dtype: torch.dtype
) -> Adapter:
    """Read an adapter for the model of these layers and rules. Blocking.

    Raises:
        ModelLoadError: the folder is no adapter, is damaged, or does not fit the model; the message names every tensor
            that is missing, unexpected or of another shape.
    """
    config = AdapterConfig.from_folder(folder)
    found = _read(folder / WEIGHTS_FILE, layers, rules)
    for name, pair in found.pairs.items():
        found.faults += _faults_of(pair, layers[name], name, config, max_rank)
    paths = [pair.path for pair in found.pairs.values()]
    has_all = not rules.elsewhere  # the stages of a pipeline see their layers only
    for target in config.targets if has_all and not found.faults else ():
        if not any(f".{path}".endswith(f".{target}") for path in paths):
            found.faults.append(f"missing tensors of {target}, which target_modules names")
    if has_all and not found.pairs and not found.faults:
        found.faults.append("it has no tensors")
    if found.faults:
        lines = "\n  ".join(found.faults)
        raise ModelLoadError(f"the adapter in {folder} does not fit the model:\n  {lines}")
    return _packed(found.pairs, layers, rules, config, dtype)


def _read(path: Path, layers: Mapping[str, LoraLayer], rules: WeightRules) -> _Found:
    found = _Found()
    if not path.is_file():
        pickled = path.with_suffix(".bin").is_file()
        hint = "; pickled weights are not read, save it as safetensors" if pickled else "; fetch the adapter again"
        raise ModelLoadError(f"{path.parent} lacks {WEIGHTS_FILE}{hint}")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118  # not a dict
                match = _NAME.fullmatch(name)
                if match is None:
                    found.faults.append(f"unexpected tensor {name}")
                    continue
                canonical = rules.canonical_name(f"{match[1]}.weight").removesuffix(".weight")
                if rules.is_elsewhere(f"{canonical}.weight"):
                    continue
                if canonical not in layers:
                    found.faults.append(
                        f"unexpected tensor {name}: matrices of attention and of MLPs outside experts may have adapters"
                    )
                    continue
                pair = found.pairs.setdefault(canonical, _Pair(match[1]))
                tensor = file.get_tensor(name)
                if tensor.dtype not in _DTYPES:
                    found.faults.append(f"{name} is {tensor.dtype}, not floating point")
                if match[2] == "A":
                    pair.a = tensor
                else:
                    pair.b = tensor
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from None
    return found


def _faults_of(pair: _Pair, layer: LoraLayer, name: str, config: AdapterConfig, max_rank: int) -> list[str]:
    """What is wrong with the tensors of a layer."""
    faults = []
    rank = config.rank_of(pair.path)
    if rank > max_rank:
        faults.append(f"{pair.path} has rank {rank}, above max_lora_rank={max_rank}; raise it")
    (num_outputs, *_), num_inputs = layer.part_sizes_of(name), layer.shape[1]
    for letter, tensor, shape in (("A", pair.a, [rank, num_inputs]), ("B", pair.b, [num_outputs, rank])):
        own = f"{pair.path}.lora_{letter}.weight"
        if tensor is None:
            faults.append(f"missing tensor {own}")
        elif list(tensor.shape) != shape:
            faults.append(f"{own} has shape {list(tensor.shape)}; by the model and r it is {shape}")
    return faults


def _packed(
    pairs: Mapping[str, _Pair],
    layers: Mapping[str, LoraLayer],
    rules: WeightRules,
    config: AdapterConfig,
    dtype: torch.dtype,
) -> Adapter:
    rules = adapter_rules(rules)
    of_layers: dict[str, list[str]] = {}
    for name in pairs:
        of_layers.setdefault(layers[name].name, []).append(name)
    made: dict[str, LayerAdapter] = {}
    for layer_name, names in of_layers.items():
        layer = layers[names[0]]
        ranks = {name: config.rank_of(pairs[name].path) for name in names}
        most = max(ranks.values())
        a = torch.zeros((len(layer.parts), most, layer.matrix.num_columns), dtype=dtype)
        b = torch.zeros((most, layer.matrix.num_rows), dtype=dtype)
        for name in names:
            pair = pairs[name]
            assert pair.a is not None and pair.b is not None, "checked"
            layer.write_inner(a, name, pair.a)
            layer.write_outer(b, name, pair.b, config.factor_of(pair.path), rules)
        if not (a.isfinite().all() and b.isfinite().all()):
            raise ModelLoadError(f"the adapter of {pairs[names[0]].path} holds numbers that are not finite")
        made[layer_name] = LayerAdapter(a, b, tuple(ranks.get(part, 0) for part in layer.parts))
    return Adapter(made)
