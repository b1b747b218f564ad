"""Writes a quantized copy of a checkpoint. A start reads it unchanged: the same bytes as quantizing at each start.

With 8 bits it is a compressed-tensors checkpoint (pack-quantized, a scale per row). Embedding and head stay in floating
point, as in other such checkpoints; lullm quantizes them while it reads. With 4 bits compressed-tensors would need 2
bits a weight more for the scales of 16 inputs, so the file has lullm's own format (`DigitTensor`).
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.nn.embedding import Embedding, LMHead
from lullm.ops.quantized.integer_rows import IntegerRows, rows_of_storage
from lullm.ops.quantized.weight import GROUP_INPUTS, QuantizedLayout
from lullm.ops.table import Ops
from lullm.units import GIB, cdiv
from lullm.weights.encoding.checkpoint import OF_ACTIVATIONS
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.joining import Joining, whole_name
from lullm.weights.reading.files import INDEX_FILE
from lullm.weights.reading.progress import Progress
from lullm.weights.reading.source import open_source
from lullm.weights.target import Loadable, WeightTargets

_SHARD_BYTES = 2 * GIB
_METADATA = {"format": "pt"}


def export_quantized(
    model: Loadable, source: Path, out: Path, quantization: Literal["int8", "int4"], ops: Ops
) -> dict[str, Any]:
    """Write the tensors of the checkpoint in `source` into the folder `out`. Blocking; needs memory for one shard.

    Args:
        model: of that checkpoint, on the meta device, its matrices quantized (`quantize_model`).

    Returns:
        The `quantization_config` of the written files.

    Raises:
        ModelLoadError: the checkpoint does not fit the model, or a tensor cannot be quantized.
    """
    writer = _Writer(model, quantization, ops)
    shards, weight_map, opened = _Shards(out), {}, open_source(source)
    joins, stored_names = model.rules.joins, opened.names()
    if model.rules.transposes or any(writer.is_stacked(whole_name(joins, name)) for name in stored_names):
        raise ModelLoadError(
            f"{source} holds matrices as [in, out], or several in one, which a quantized copy cannot; "
            f"start it with --quantization {quantization} instead"
        )
    joining = Joining(joins, stored_names if joins else ())
    with Progress(f"quantizing to {quantization}", opened.num_bytes) as progress, torch.inference_mode():
        for name, tensor, num_bytes in opened.tensors():
            assert isinstance(tensor, Tensor), "a folder of safetensors"
            whole = joining.add(name, tensor)
            for part, stored in () if whole is None else writer.parts(*whole):
                weight_map[part] = shards.add(part, stored)
            progress.add(num_bytes)
        if missing := [part for _, part in joining.incomplete()]:
            raise ModelLoadError(f"{source}: missing tensor {missing[0]}; fetch the checkpoint again")
        shards.write()
    names = shards.finish()
    index = {"metadata": {"total_size": shards.num_bytes}, "weight_map": {k: names[v] for k, v in weight_map.items()}}
    (out / INDEX_FILE).write_text(json.dumps(index, indent=1))
    return writer.stated()


class _Writer:
    """Turns a checkpoint's tensors into those of the quantized one."""

    def __init__(self, model: Loadable, quantization: Literal["int8", "int4"], ops: Ops):
        self._targets = WeightTargets(model, ops)
        self._ops = ops
        self._quantization = quantization
        self._as_bytes: list[str] = []  # modules that a 4-bit file holds in 8 bits
        self._left: list[str] = []  # modules that stay in floating point
        self._outer = {
            f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, Embedding | LMHead)
        }

    def is_stacked(self, name: str) -> bool:
        """Whether a tensor holds the matrices of several modules."""
        return self._targets.is_stacked(name)

    def parts(self, name: str, tensor: Tensor | EncodedTensor) -> Iterator[tuple[str, Tensor]]:
        """The written tensors for one tensor. Raises ModelLoadError: it cannot be quantized."""
        target = self._targets.find(name, tensor)
        module = name.removesuffix(".weight")
        if target is None:
            # Scales of an fp8 KV cache; a copy of a tied head is left out.
            if isinstance(tensor, Tensor) and name.endswith("_scale") and not OF_ACTIVATIONS.search(name):
                yield name, tensor
            return
        is_outer = not self._outer.isdisjoint(target.parameters)
        if not target.rows.bits or (is_outer and self._quantization == "int8"):
            if len(tensor.shape) == 2:
                self._left.append(module)
            yield name, tensor if isinstance(tensor, Tensor) else tensor.decode()
            return
        rows = self._quantized(name, tensor, 8 if target.rows.bits == 8 else 4)
        shape = torch.tensor(tensor.shape)
        scales = rows.row_scales.unsqueeze(1)
        if self._quantization == "int8":
            packed = torch.nn.functional.pad(rows.integers.view(torch.uint8) ^ 0x80, (0, -tensor.shape[1] % 4))
            yield f"{module}.weight_packed", packed.view(torch.int32)
            yield f"{module}.weight_scale", scales
            yield f"{module}.weight_shape", shape
        elif rows.group_scales is None:
            self._as_bytes.append(module)
            yield f"{module}.weight", rows.integers
            yield f"{module}.weight_scale", scales
        else:
            digits = torch.nn.functional.pad((rows.integers + 8).view(torch.uint8), (0, tensor.shape[1] % 2))
            yield f"{module}.weight_digits", digits[:, ::2] | digits[:, 1::2] << 4
            yield f"{module}.weight_group_scale", rows.group_scales
            yield f"{module}.weight_scale", scales
            yield f"{module}.weight_shape", shape

    def stated(self) -> dict[str, Any]:
        """The `quantization_config`."""
        if self._quantization == "int4":
            return {"quant_method": "lullm", "version": 1, "bits": 4, "int8_modules": sorted(self._as_bytes)}
        weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": sorted(self._left),
            "lullm": "int8",
        }

    def _quantized(self, name: str, tensor: Tensor | EncodedTensor, bits: Literal[8, 4]) -> IntegerRows:
        if not isinstance(tensor, Tensor):
            stored = tensor.rows(bits)  # unchanged, if a start would not round them again
            if isinstance(stored, IntegerRows):
                groups = torch.ones(len(stored), cdiv(tensor.shape[1], GROUP_INPUTS), dtype=torch.int8)
                return replace(stored, group_scales=groups) if bits == 4 and stored.group_scales is None else stored
            tensor = tensor.decode()
        layout = QuantizedLayout(bits, *tensor.shape)
        storage = torch.zeros(layout.shape, dtype=torch.uint8)
        try:
            self._ops.quantize_rows_(storage, layout, 0, tensor)
        except ModelLoadError as error:
            raise ModelLoadError(f"{name}: {error}") from None
        return rows_of_storage(storage, layout)


class _Shards:
    """Files of about 2 GiB, named once their number is known."""

    def __init__(self, out: Path):
        self._out = out
        self._tensors: dict[str, Tensor] = {}
        self._waiting_bytes = self._number = self.num_bytes = 0

    def add(self, name: str, tensor: Tensor) -> int:
        """Add a tensor. Returns the number of its shard."""
        if self._tensors and self._waiting_bytes + tensor.nbytes > _SHARD_BYTES:
            self.write()
        self._tensors[name] = tensor.contiguous()
        self._waiting_bytes += tensor.nbytes
        self.num_bytes += tensor.nbytes
        return self._number

    def write(self) -> None:
        """Write the waiting tensors as a shard."""
        path = self._out / f"shard-{self._number}"
        try:
            save_file(self._tensors, path, _METADATA)
        except SafetensorError as error:  # such as a full disk
            raise OSError(f"{path} cannot be written: {error}") from None
        path.chmod(self._out.stat().st_mode & 0o666)  # safetensors leaves the file to its owner alone
        self._tensors, self._waiting_bytes, self._number = {}, 0, self._number + 1

    def finish(self) -> list[str]:
        """The names of all shards, in order."""
        names = [f"model-{number + 1:05}-of-{self._number:05}.safetensors" for number in range(self._number)]
        for number, name in enumerate(names):
            (self._out / f"shard-{number}").rename(self._out / name)
        return names
