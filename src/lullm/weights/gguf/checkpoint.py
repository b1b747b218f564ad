"""GGUF files as a checkpoint: their tensors under the names and in the order of the same model's safetensors."""

import mmap
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lullm.config.field import MOST_EXPERTS
from lullm.config.gguf.file import GGUFFile, read_gguf
from lullm.config.gguf.header import TensorPlace
from lullm.errors import ModelLoadError
from lullm.weights.gguf.plan import keep_blocks
from lullm.weights.gguf.tensor import GGUFTensor
from lullm.weights.rule import WeightRules
from lullm.weights.target import Loadable

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OF_ARCHITECTURE: dict[str, dict[str, str]] = {
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "gpt-oss": {
        "post_attention_norm": "post_attention_layernorm",
        "attn_sinks": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
    },
}
"""What differs from the names above."""
_NOT_WEIGHTS = re.compile(r"^rope_(freqs|factors_long|factors_short)\.weight$")
"""They are read with the config."""
_LAYER = re.compile(r"^blk\.(\d{1,9})\.(.+)$")


class GGUFSource:
    """The tensors of a GGUF file; see `Source`."""

    def __init__(self, path: Path):
        self._file = read_gguf(path)
        for place in self._file.tensors.values():
            _check_stack(self._file.architecture, place)
        self.num_bytes = sum(place.num_bytes for place in self._file.tensors.values())

    def rules(self, rules: WeightRules) -> WeightRules:
        """A file holds Gemma's 1 + w as they are, and the matrices of gpt-oss's experts as of all others'."""
        return replace(rules, offsets=(), stacks=(), joins=())

    def names(self) -> frozenset[str]:
        return frozenset(self.shapes())

    def shapes(self) -> dict[str, list[int]]:
        places = self._file.tensors.values()
        return {name: list(shape) for place in places for name, shape in _named_shapes(self._file.architecture, place)}

    def keep_blocks(self, model: Loadable) -> int:
        formats: dict[str, str] = {}
        for place in self._file.tensors.values():
            for name, _ in _named_shapes(self._file.architecture, place):
                formats[name] = place.format.name
        return keep_blocks(model, formats)

    def tensors(self) -> Iterator[tuple[str, Tensor | GGUFTensor, int]]:
        reorder, places = _reorder(self._file), self._file.tensors.values()
        contents = {path: _mapped(place) for path, place in {place.path: place for place in places}.items()}
        for place in places:
            name = checkpoint_name(self._file.architecture, place.name)
            if name is None:
                continue
            raw = contents[place.path][place.offset : place.offset + place.num_bytes]
            raw = raw.view(-1, place.format.row_bytes(place.shape[-1]))
            tensor = reorder(place.name, GGUFTensor(raw, place.format, torch.Size(place.shape)))
            parts = tensor.slices() if "*" in name else [tensor]
            for number, part in enumerate(parts):
                values = part if place.format.is_quantized else part.decode()
                yield name.replace("*", str(number)), values, part.raw.nbytes


def _check_stack(architecture: str, place: TensorPlace) -> None:
    """Raises ModelLoadError: a tensor of all experts has more of them than any model, each of which takes a name."""
    is_stack = "*" in (checkpoint_name(architecture, place.name) or "")
    if is_stack and (len(place.shape) < 2 or place.shape[0] > MOST_EXPERTS):
        raise ModelLoadError(
            f"{place.path}: tensor {place.name} has shape {list(place.shape)}, which is none of 1 to {MOST_EXPERTS} "
            "experts; fetch it again"
        )


def _named_shapes(architecture: str, place: TensorPlace) -> Iterator[tuple[str, tuple[int, ...]]]:
    name = checkpoint_name(architecture, place.name)
    if name is not None and "*" in name:
        yield from ((name.replace("*", str(number)), place.shape[1:]) for number in range(place.shape[0]))
    elif name is not None:
        yield name, place.shape


def checkpoint_name(architecture: str, name: str) -> str | None:
    """A checkpoint's name of a tensor; '*': the number of an expert, of which it stacks all. None: no weight."""
    if _NOT_WEIGHTS.match(name):
        return None
    in_layer = _IN_LAYER | _OF_ARCHITECTURE.get(architecture, {})
    layer = _LAYER.match(name)
    stem, _, last = (layer[2] if layer else name).rpartition(".")
    if layer is None:
        return f"{_TOP[stem]}.{last}" if stem in _TOP else name
    prefix = f"model.layers.{layer[1]}"
    if stem in _EXPERTS:
        return f"{prefix}.mlp.experts.*.{_EXPERTS[stem]}.{last}"
    if stem == "attn_sinks":
        return f"{prefix}.{in_layer[stem]}" if stem in in_layer else name
    return f"{prefix}.{in_layer[stem]}.{last}" if stem in in_layer else name


def _mapped(place: TensorPlace) -> Tensor:
    """All bytes of a file, which are read when they are used."""
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


def _reorder(file: GGUFFile) -> Callable[[str, GGUFTensor], GGUFTensor]:
    """Llama's files hold rows of queries and keys in the order of pairs of neighbours; all others as they were."""
    if file.architecture != "llama":
        return lambda name, tensor: tensor
    num_heads = {"attn_q": file.metadata["llama.attention.head_count"]}
    num_heads["attn_k"] = file.metadata.get("llama.attention.head_count_kv", num_heads["attn_q"])

    def reorder(name: str, tensor: GGUFTensor) -> GGUFTensor:
        *_, stem, _ = ("", *name.split("."))
        if stem not in num_heads:
            return tensor
        heads = num_heads[stem]
        heads = heads if isinstance(heads, int) else heads[0]
        if tensor.shape[0] % (2 * heads):
            raise ModelLoadError(f"{name} has {tensor.shape[0]} rows for {heads} heads")
        if len(tensor.shape) > 1:
            return tensor.with_halves_apart(heads)
        values = GGUFTensor(tensor.raw.view(tensor.shape[0], -1), tensor.block, tensor.shape)
        return GGUFTensor(values.with_halves_apart(heads).raw.view(1, -1), tensor.block, tensor.shape)

    return reorder
