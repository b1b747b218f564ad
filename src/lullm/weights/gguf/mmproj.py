"""The tensors of an mmproj file: a tower for pictures, under the names of the parameters that read them."""

import math
import mmap
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lullm.config.gguf.file import read_gguf
from lullm.config.gguf.header import TensorPlace
from lullm.config.gguf.keys import Keys
from lullm.config.gguf.mmproj.kind import deep_layers, kind_of
from lullm.errors import ModelLoadError
from lullm.weights.gguf.blocks import check_library
from lullm.weights.gguf.tensor import GGUFTensor

_TOWER = {
    "v.patch_embd.weight": "embeddings.patch_embedding.weight",
    "v.patch_embd.bias": "embeddings.patch_embedding.bias",
    "v.class_embd": "embeddings.class_embedding",
    "v.position_embd.weight": "embeddings.position_embedding.weight",
    **{f"v.pre_ln.{last}": f"pre_layernorm.{last}" for last in ("weight", "bias")},
    **{f"v.post_ln.{last}": f"post_layernorm.{last}" for last in ("weight", "bias")},
}
_IN_LAYER = {
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_out": "self_attn.out_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_SCALES = {"ls1.weight": "lambda_1", "ls2.weight": "lambda_2"}
_QWEN = {"mm.0": "linear_1", "mm.2": "linear_2"}
_CONNECTORS: Mapping[str, Mapping[str, str]] = {
    "gemma3": {"mm.soft_emb_norm": "norm"},
    "qwen2vl_merger": _QWEN,
    "qwen2.5vl_merger": _QWEN,
    "qwen3vl_merger": _QWEN,
    "idefics3": {"mm.model.fc": "proj"},
    "pixtral": {
        "mm.input_norm": "norm", "mm.patch_merger": "merging_layer", "mm.1": "linear_1", "mm.2": "linear_2",
    },
    "internvl": {"mm.model.mlp.0": "layer_norm", "mm.model.mlp.1": "linear_1", "mm.model.mlp.3": "linear_2"},
}  # fmt: skip
"""By `clip.projector_type`."""
_WHOLE = {"mm.input_projection.weight": "vision.connector.projection"}
_DEEP = {"norm": "layer_norm", "fc1": "linear_1", "fc2": "linear_2"}
_LAYER = re.compile(r"^v\.blk\.(\d{1,4})\.(.+)$")
_DEEP_LAYER = re.compile(r"^v\.deepstack\.(\d{1,4})\.(norm|fc1|fc2)\.(weight|bias)$")
_ELSEWHERE = re.compile(r"^(a\.|mm\.a\.|v\.token_embd\.img_break$)")
"""Towers for sounds, and a row of the text model's embedding."""
_PATCHES, _SECOND = "v.patch_embd.weight", "v.patch_embd.weight.1"
"""The part of a patch's matrix for the first picture of a film, and that for the second one."""
_FUSED = ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger")
"""Kinds whose queries, keys and values are one matrix here; the files of older ones hold three."""
_QUERIES = re.compile(r"^v\.blk\.\d{1,4}\.attn_q\.(weight|bias)$")
_BEHIND_QUERIES = re.compile(r"^v\.blk\.\d{1,4}\.attn_[kv]\.(weight|bias)$")
_PAIRS_TURN = "pixtral"
"""The kind whose queries and keys have the order of Llama's files."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A parameter: its shape, and the tensors of the file that make it, one behind the other along `dimension`."""

    name: str
    shape: tuple[int, ...]
    places: tuple[TensorPlace, ...]
    dimension: int = 0


class MmprojTensors:
    """The tensors of an mmproj file. Raises ModelLoadError: it is damaged, or of a kind that is not supported."""

    def __init__(self, path: Path):
        self._file = read_gguf(path)
        keys = Keys(self._file)
        self._kind, _ = kind_of(keys)
        self._deep = {layer: number for number, layer in enumerate(deep_layers(keys))}
        self._num_heads, self._size = keys.need("vision.attention.head_count"), keys.need("vision.embedding_length")
        self._named = [self._of(place) for place in self._file.tensors.values() if not _ELSEWHERE.match(place.name)]
        for place in (place for named in self._named if named is not None for place in named.places):
            check_library(f"{place.name} of {path}", place.format)

    @property
    def num_bytes(self) -> int:
        return sum(place.num_bytes for named in self._present for place in named.places)

    @property
    def _present(self) -> list[_Named]:
        return [named for named in self._named if named is not None]

    def shapes(self) -> dict[str, list[int]]:
        return {named.name: list(named.shape) for named in self._present}

    def tensors(self) -> Iterator[tuple[str, Tensor, int]]:
        """Names, decoded tensors and their bytes in the file."""
        with self._file.path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is only read
            stored = torch.frombuffer(content, dtype=torch.uint8)
        for named in self._present:
            parts = [self._decoded(stored, place) for place in named.places]
            values = parts[0] if len(parts) == 1 else torch.cat(parts, named.dimension)
            yield named.name, values.reshape(named.shape), sum(place.num_bytes for place in named.places)

    def _decoded(self, stored: Tensor, place: TensorPlace) -> Tensor:
        if len(stored) < place.offset + place.num_bytes:
            raise ModelLoadError(f"{place.path} has become shorter while it was read; fetch it again")
        raw = stored[place.offset : place.offset + place.num_bytes].view(-1, place.format.row_bytes(place.shape[-1]))
        tensor = GGUFTensor(raw, place.format, torch.Size(place.shape))
        if self._kind == _PAIRS_TURN and re.search(r"\.attn_[qk]\.weight$", place.name):
            if len(tensor) % (2 * self._num_heads):
                raise ModelLoadError(f"{place.path}: {place.name} has {len(tensor)} rows for {self._num_heads} heads")
            tensor = tensor.with_halves_apart(self._num_heads)
        values = tensor.decode()
        return values.unsqueeze(2) if place.name in (_PATCHES, _SECOND) and values.dim() == 4 else values

    def _of(self, place: TensorPlace) -> _Named | None:
        """None: it is a part of another one."""
        is_fused = self._kind in _FUSED
        if place.name == _SECOND or is_fused and _BEHIND_QUERIES.match(place.name):
            return None
        name, shape = self._name(place), place.shape
        if place.name == _PATCHES and _SECOND in self._file.tensors:
            second = self._beside(place, _SECOND)
            return _Named(name, (*shape[:2], 2, *shape[2:]), (place, second), 2)
        if is_fused and _QUERIES.match(place.name):
            parts = tuple(self._beside(place, place.name.replace("attn_q.", f"attn_{part}.")) for part in "qkv")
            return _Named(name.replace("q_proj", "qkv_proj"), (3 * shape[0], *shape[1:]), parts)
        if place.name == "v.class_embd":
            shape = (math.prod(shape),)
        elif place.name == "v.position_embd.weight":
            shape = (math.prod(shape[:-1]), shape[-1])
        return _Named(name, shape, (place,))

    def _beside(self, place: TensorPlace, name: str) -> TensorPlace:
        """Another tensor of the same shape. Raises ModelLoadError: there is none."""
        other = self._file.tensors.get(name)
        if other is None or other.shape != place.shape or name == _SECOND and len(place.shape) != 4:
            raise ModelLoadError(f"{place.path} has no {name} of the shape of {place.name}, {list(place.shape)}")
        return other

    def _name(self, place: TensorPlace) -> str:
        """The parameter's name; the file's own for a tensor that none has, so that the loader names it."""
        name = place.name
        if (whole := _WHOLE.get(name)) is not None:
            return whole
        if (of_tower := _TOWER.get(name)) is not None:
            return f"vision.tower.{of_tower}"
        stem, _, last = name.rpartition(".")
        if (joined := _CONNECTORS[self._kind].get(stem)) is not None:
            return f"vision.connector.{joined}.{last}"
        if (match := _DEEP_LAYER.match(name)) is not None and int(match[1]) in self._deep:
            return f"vision.deep.{self._deep[int(match[1])]}.{_DEEP[match[2]]}.{match[3]}"
        if (match := _LAYER.match(name)) is None:
            return name
        stem, _, last = match[2].rpartition(".")
        if self._is_swapped(match[1]):
            stem = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}.get(stem, stem)
        inside = _SCALES.get(match[2]) or f"{_IN_LAYER.get(stem, stem)}.{last}"
        return f"vision.tower.layers.{match[1]}.{inside}"

    def _is_swapped(self, layer: str) -> bool:
        """Older files name the two matrices of an MLP the other way round."""
        up = self._file.tensors.get(f"v.blk.{layer}.ffn_up.weight")
        return up is not None and up.shape[0] == self._size != up.shape[-1]
