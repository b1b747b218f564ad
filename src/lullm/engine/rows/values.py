"""Numbers of rows: from a caller's tensor, array or file to `GivenRows` of the model's type. Loads no torch.

Files are safetensors and .npy, which hold numbers only. A file of `torch.save` is a pickle, which runs code of whoever
wrote it when it is read.
"""

import io
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, deserialize

from lullm.errors import InvalidRequestError
from lullm.types.vision.given import GIVEN_TOKEN_ID, GivenRows
from lullm.types.vision.tile import TilePlace

_NPY = b"\x93NUMPY"
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""The first bytes of what torch.save and pickle write."""
_ADVICE = "take safetensors.torch.save({'prompt_embeds': rows}), a file of one tensor, or a .npy file (numpy.save)"
_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_LEAST_PIECE = 16  # rows


class RowsError(ValueError):
    """The numbers are no rows for the model."""


def read_file(data: bytes) -> np.ndarray:
    """The one array of a safetensors or .npy file, `[T, H]` of a floating type. Raises RowsError."""
    if data.startswith(_NPY):
        return _read_npy(data)
    if data.startswith(_PICKLES):
        raise RowsError(f"this is a file of torch.save or pickle, which can run code and is never read; {_ADVICE}")
    try:
        tensors = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise RowsError(f"this is neither a safetensors nor a .npy file ({error}); {_ADVICE}") from None
    if len(tensors) != 1:
        raise RowsError(f"the safetensors file has {len(tensors)} tensors, not one")
    return stored_array(tensors[0][1])


def _read_npy(data: bytes) -> np.ndarray:
    """By its header, since numpy's reader would first allocate what a header of 50 bytes says."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, kind = read_header(file)
        if kind.kind != "f":
            raise RowsError(f"rows are floating numbers, and the .npy file has {kind}")
        values = np.frombuffer(data, kind, offset=file.tell()) if file.tell() < len(data) else np.empty(0, kind)
        return values.reshape(shape, order="F" if by_columns else "C")
    except (ValueError, EOFError, OverflowError, MemoryError) as error:
        raise RowsError(f"the .npy file cannot be read: {error}") from None


def stored_array(stored: Any) -> np.ndarray:
    """A tensor that `safetensors.deserialize` gives, as an array. Raises RowsError: its type is no floating one."""
    kind = stored["dtype"]
    if kind not in _STORED:
        raise RowsError(f"the tensor has the type {kind}; take {', '.join(_STORED)}")
    data = stored["data"]
    values = np.frombuffer(data, _STORED[kind]) if data else np.empty(0, _STORED[kind])
    values = values.reshape(stored["shape"])
    return _widened(values) if kind == "BF16" else values


def array_of(given: Any) -> np.ndarray:
    """A caller's tensor, or what numpy makes an array of. Raises RowsError."""
    if hasattr(given, "detach") and hasattr(given, "is_floating_point"):  # a tensor, so torch is loaded
        import torch

        if not given.is_floating_point() or given.layout != torch.strided or given.is_meta or given.is_quantized:
            raise RowsError(f"rows are a dense tensor of floating numbers, not {given.dtype} ({given.layout})")
        kept = given.detach().cpu()
        is_plain = kept.dtype in (torch.float16, torch.float32, torch.float64)
        return np.asarray((kept if is_plain else kept.float()).numpy())
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise RowsError(f"rows are a tensor or an array, not {type(given).__name__}: {error}") from None


def checked(values: np.ndarray, hidden_size: int, dtype: str, max_rows: int) -> np.ndarray:
    """Rows `[T, H]` in the model's type; bfloat16 as its bits.

    Raises:
        RowsError: not of this shape or of a floating type, or a number that is not finite in the model's type.
        InvalidRequestError: more than `max_rows`, which are the longest prompt of the model.
    """
    if values.ndim == 3 and len(values) == 1:
        values = values[0]
    if values.dtype.kind != "f" or values.dtype.itemsize > 8:
        raise RowsError(f"rows are floating numbers (float16, bfloat16, float32 or float64), not {values.dtype}")
    if values.ndim != 2 or not len(values) or values.shape[1] != hidden_size:
        shape = " x ".join(map(str, values.shape)) or "a number"
        raise RowsError(f"rows of this model are [T, {hidden_size}] with T of at least 1, not {shape}")
    if len(values) > max_rows:
        raise InvalidRequestError(
            f"the prompt is too long: {len(values)} rows > {max_rows} (max_model_len)", code="context_length_exceeded"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        found = values.astype("<f2") if dtype == "float16" else np.ascontiguousarray(values, "<f4")
    is_finite = bool(np.isfinite(found).all())
    if dtype == "bfloat16":
        found = _narrowed(found)
        is_finite = is_finite and bool((found & 0x7FFF).max() < 0x7F80)
    if not is_finite:
        raise RowsError(f"rows must be finite in the model's type ({dtype}): there are NaN, inf or too large numbers")
    return found


def pieces(rows: np.ndarray, dtype: str, block_size: int) -> tuple[GivenRows, ...]:
    """Rows cut to the size of KV blocks: so plans carry what they show, and prompts share the blocks that are equal."""
    size = -(-_LEAST_PIECE // block_size) * block_size
    parts = (rows[start : start + size] for start in range(0, len(rows), size))
    return tuple(GivenRows.of(len(part), dtype, part.tobytes()) for part in parts)


def placed(
    given: Sequence[GivenRows], token_ids: list[int], tiles: Sequence[TilePlace]
) -> tuple[list[int], tuple[TilePlace, ...]]:
    """A prompt with these rows before it: its token ids, and the places of all rows and tiles."""
    places, start = [], 0
    for rows in given:
        places.append(TilePlace(rows, start, rows.num_rows))
        start += rows.num_rows
    behind = (msgspec.structs.replace(each, start=each.start + start) for each in tiles)
    return [GIVEN_TOKEN_ID] * start + token_ids, (*places, *behind)


def _widened(bits: np.ndarray) -> np.ndarray:
    """bfloat16 by its bits, as float32."""
    return (bits.astype("<u4") << 16).view("<f4")


def _narrowed(values: np.ndarray) -> np.ndarray:
    """The bits of float32 rounded to bfloat16, to the nearest, ties to even. There is no NaN."""
    bits = values.view("<u4")
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return rounded.astype("<u2")
