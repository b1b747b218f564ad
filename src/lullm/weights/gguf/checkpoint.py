"""GGUF files as a checkpoint: their tensors under the names and in the order of the same model's safetensors."""

import mmap
import re
import warnings
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lullm.config.field import MOST_EXPERTS
from lullm.config.gguf.file import GGUFFile, read_gguf
from lullm.config.gguf.header import TensorPlace
from lullm.config.gguf.keys import Keys
from lullm.config.gguf.rope import head_dim
from lullm.errors import ModelLoadError
from lullm.units import cdiv
from lullm.weights.gguf.blocks import check_library
from lullm.weights.gguf.latent import KEY_PART, VALUE_PART, LatentParts
from lullm.weights.gguf.mmproj import MmprojTensors
from lullm.weights.gguf.names import Names, checkpoint_shape
from lullm.weights.gguf.tensor import NATIVE, GGUFTensor
from lullm.weights.gguf.value_heads import ValueHeads
from lullm.weights.rule import Fusion, HeadOrder, WeightRules, rotated_first

_PAIRS_TURN = frozenset({
    "arcee", "granite", "granitehybrid", "granitemoe", "internlm2", "llama", "minicpm", "mistral3", "olmo", "smollm3",
    "xverse",
})  # fmt: skip
"""Architectures whose files order rows of queries and keys by pairs of neighbours."""
_VALUES_TAKE_TURNS = frozenset({"qwen35", "qwen35moe"})
"""Architectures with value heads in another order."""
_GATES_APART = frozenset({"granitehybrid", "granitemoe"})
"""Architectures with gate and up as one matrix in checkpoints, and as two in files."""
_KINDS_APART = frozenset({"bloom", "falcon", "gptneox"})
"""Architectures with query, key and value of a head together in checkpoints, and all queries, keys, values in files."""
_GATE_UP = Fusion(("gate_proj", "up_proj"), "gate_up_proj")
_SCORE = "score.weight"
_QKV_Z = Fusion(("in_proj_qkv", "in_proj_z"), "in_proj_qkvz")
"""For Qwen3-Next, whose checkpoints hold queries, keys, values and gates of each head together."""


class GGUFSource:
    """The tensors of a GGUF file; see `Source`. `mmproj`: the file beside it that reads pictures."""

    def __init__(self, path: Path, mmproj: Path | None = None):
        self._file = read_gguf(path)
        self._tower = None if mmproj is None else MmprojTensors(mmproj)
        self._keys = keys = Keys(self._file)
        self._names = Names(self._file.architecture, self._file.tensors)
        self._heads = ValueHeads.of(keys) if self._file.architecture in _VALUES_TAKE_TURNS else None
        self._places = [place for place in self._file.tensors.values() if not _drafts(place.name, keys.num_layers)]
        for place in self._places:
            _check_stack(self._names, place)
            check_library(f"{place.name} of {path}", place.format)
        self._activations = _activations(keys) if self._file.architecture == "apertus" else {}
        of_tower = 0 if self._tower is None else self._tower.num_bytes
        self.num_bytes = of_tower + sum(place.num_bytes for place in self._places)

    def rules(self, rules: WeightRules) -> WeightRules:
        """A file holds Gemma's 1 + w as the sum, all matrices as [out, in], and those of experts one by one."""
        fusions = rules.fusions
        if self._file.architecture in _GATES_APART:
            fusions = (*fusions, _GATE_UP)
        if self._file.architecture == "qwen3next":
            fusions = (*fusions, _QKV_Z)
        if self._file.architecture in _KINDS_APART:
            rules = replace(rules, head_orders=self._turned_part())
        return replace(rules, offsets=(), stacks=(), joins=(), transposes=(), flattens=(), fusions=fusions)

    def _turned_part(self) -> tuple[HeadOrder, ...]:
        """The order of heads that are rotated in part."""
        size, turned = head_dim(self._keys), self._keys.number("rope.dimension_count")
        if turned in (None, size):
            return ()
        num_heads = self._keys.need("attention.head_count")
        num_turning = num_heads + (self._keys.number("attention.head_count_kv") or num_heads)
        return (HeadOrder(re.compile(r"\.qkv_proj\."), rotated_first(size, turned), num_turning),)

    def names(self) -> frozenset[str]:
        return frozenset(self.shapes())

    def shapes(self) -> dict[str, list[int]]:
        stored = {name: list(shape) for place in self._places for name, shape in _named_shapes(self._names, place)}
        stored |= {} if self._tower is None else self._tower.shapes()
        return stored | {name: list(tensor.shape) for name, tensor in self._activations.items()}

    def formats(self, rules: WeightRules) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for place in self._places:
            is_whole = self._heads is None or self._heads.keeps_blocks(place.name, place.format)
            for name, _ in _named_shapes(self._names, place):
                is_stored = is_whole and name != _SCORE
                found[rules.canonical_name(name)] = NATIVE.get(place.format.name, ()) if is_stored else ()
        return found

    def tensors(self) -> Iterator[tuple[str, Tensor | GGUFTensor, int]]:
        reorder, places = self._reorder(), self._places
        latents = LatentParts()
        contents = {path: _mapped(place) for path, place in {place.path: place for place in places}.items()}
        for place in places:
            name = self._names.of(place.name)
            if name is None:
                continue
            raw = contents[place.path][place.offset : place.offset + place.num_bytes]
            raw = raw.view(-1, place.format.row_bytes(place.shape[-1]))
            shape = torch.Size(checkpoint_shape(place.name, place.shape))
            tensor = reorder(place.name, GGUFTensor(raw, place.format, shape))
            if name.endswith(KEY_PART) or name.endswith(VALUE_PART):
                yield from latents.add(name, tensor)
                continue
            parts = tensor.slices() if "*" in name else [tensor]
            for number, part in enumerate(parts):
                for own, rows in _gate_and_up(name.replace("*", str(number)), part):
                    yield own, _values(own, rows), rows.raw.nbytes
        latents.finish()
        yield from ((name, tensor, 0) for name, tensor in self._activations.items())
        if self._tower is not None:
            yield from self._tower.tensors()

    def _reorder(self) -> Callable[[str, GGUFTensor], GGUFTensor]:
        return _halves_apart(self._file) if self._heads is None else self._heads.in_order


def _values(name: str, rows: GGUFTensor) -> Tensor | GGUFTensor:
    """The values of a parameter as a checkpoint holds them; quantized ones stay as they are."""
    if name.endswith(".A_log"):  # a file holds -exp of it
        return rows.decode().neg().log()
    if name == _SCORE:  # a reranker's rows of 'yes' and 'no'
        of_yes, of_no = rows.decode().float()
        return (of_yes - of_no).unsqueeze(0)
    return rows if rows.block.is_quantized else rows.decode()


def _activations(keys: Keys) -> dict[str, Tensor]:
    """The learned activations of Apertus's layers, which a file holds among its keys."""
    found: dict[str, Tensor] = {}
    for name, shape in (("alpha_p", (1,)), ("alpha_n", (1,)), ("beta", ()), ("eps", ())):
        values = keys.file.metadata.get(f"xielu.{name}")
        if not isinstance(values, array) or len(values) < keys.num_layers:
            raise keys.fault(f"xielu.{name} must be a list of numbers, one for each layer")
        for layer in range(keys.num_layers):
            found[f"model.layers.{layer}.mlp.act_fn.{name}"] = torch.full(shape, values[layer])
    return found


def _drafts(name: str, num_layers: int) -> bool:
    """Whether the tensor belongs to a layer after the last, which only drafts tokens."""
    parts = name.split(".")
    return len(parts) > 1 and parts[0] == "blk" and parts[1].isdecimal() and int(parts[1][:9]) >= num_layers


def _check_stack(names: Names, place: TensorPlace) -> None:
    """Raises ModelLoadError: a tensor has more experts than any model. Each would take a name."""
    is_stack = "*" in (names.of(place.name) or "")
    if is_stack and (len(place.shape) < 2 or place.shape[0] > MOST_EXPERTS):
        raise ModelLoadError(
            f"{place.path}: tensor {place.name} has shape {list(place.shape)}, which is none of 1 to {MOST_EXPERTS} "
            "experts; fetch it again"
        )


def _named_shapes(names: Names, place: TensorPlace) -> Iterator[tuple[str, tuple[int, ...]]]:
    name = names.of(place.name)
    if name is not None and "*" in name:
        rows = place.shape[1:]
        if _GATE_UP.into in name:
            rows = (rows[0] // 2, *rows[1:])
        parts = [name.replace(_GATE_UP.into, part) for part in (_GATE_UP.parts if _GATE_UP.into in name else ("",))]
        yield from ((own.replace("*", str(number)), rows) for number in range(place.shape[0]) for own in parts)
    elif name == _SCORE:
        yield name, (1, *place.shape[1:])
    elif name is not None:
        yield name, checkpoint_shape(place.name, place.shape)


def _gate_and_up(name: str, rows: GGUFTensor) -> Iterator[tuple[str, GGUFTensor]]:
    """The matrix of one expert, or the two matrices that a file may hold as one."""
    if ".experts." not in name or _GATE_UP.into not in name:
        yield name, rows
        return
    for part, half in zip(_GATE_UP.parts, rows.split(cdiv(len(rows), 2)), strict=False):
        yield name.replace(_GATE_UP.into, part), half


def _mapped(place: TensorPlace) -> Tensor:
    """All bytes of a file, mapped: read on use."""
    try:
        with place.path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{place.path} cannot be read: {error}") from None
    if len(content) < place.offset + place.num_bytes:
        raise ModelLoadError(f"{place.path} has become shorter while it was read; fetch it again")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is only read
        return torch.frombuffer(content, dtype=torch.uint8)


def _halves_apart(file: GGUFFile) -> Callable[[str, GGUFTensor], GGUFTensor]:
    """A function that brings queries and keys into their checkpoint's order."""
    if file.architecture not in _PAIRS_TURN:
        return lambda name, tensor: tensor
    prefix = f"{file.architecture}.attention"
    num_heads = {"attn_q": file.metadata[f"{prefix}.head_count"]}
    num_heads["attn_k"] = file.metadata.get(f"{prefix}.head_count_kv", num_heads["attn_q"])

    def reorder(name: str, tensor: GGUFTensor) -> GGUFTensor:
        *_, stem, _ = ("", *name.split("."))
        if stem not in num_heads:
            return tensor
        heads = num_heads[stem]
        heads = heads if isinstance(heads, int) else max(heads, default=0)  # 0: of layers without attention
        if heads < 1 or tensor.shape[0] % (2 * heads):
            raise ModelLoadError(f"{name} has {tensor.shape[0]} rows for {heads} heads")
        if len(tensor.shape) > 1:
            return tensor.with_halves_apart(heads)
        values = GGUFTensor(tensor.raw.view(tensor.shape[0], -1), tensor.block, tensor.shape)
        return GGUFTensor(values.with_halves_apart(heads).raw.view(1, -1), tensor.block, tensor.shape)

    return reorder
