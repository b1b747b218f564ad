"""The ops over quantized weights in the native library, and quantizing itself.

Activations become 16-bit integers with a scale per row, so sums are exact, and a row has the same result in any batch
and instruction set.
Float32 and bfloat16 are native; other dtypes are converted to float32 and back.
"""

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.ops.cpu.native import ACTIVATIONS, DTYPES, gate, with_whole_rows
from lullm.ops.cpu.recording import call, new_result
from lullm.ops.quantized import expansion, integer_rows
from lullm.ops.quantized.grid import GridLayout, GridRows, mins_without_codes
from lullm.ops.quantized.grid import store_groups_ as store_groups_of_codes_
from lullm.ops.quantized.integer_rows import IntegerRows
from lullm.ops.quantized.narrow import NOT_A_NUMBER, NarrowLayout, NarrowRows
from lullm.ops.quantized.weight import NOT_FINITE, PANEL_ROWS, Layout, QuantizedLayout
from lullm.types.arithmetic import Activation

_MAX_INPUTS = 65536  # of a row: the sums of more products of a byte and a byte might not fit 32 bits


def quantize_rows_(storage: Tensor, layout: QuantizedLayout, first_row: int, rows: Tensor) -> None:
    """See `quantized.weight.quantize_rows_`. The bytes are the same, except where group scales are equally good."""
    rows = rows.to(storage.device)
    if rows.dtype not in DTYPES:
        rows = rows.float()
    sizes = len(rows), layout.in_features, first_row
    if not call("lullm_quantize_rows", rows.contiguous(), storage, *sizes, layout.format, DTYPES[rows.dtype]):
        raise ModelLoadError(NOT_FINITE)


def store_rows_(storage: Tensor, layout: QuantizedLayout, first_row: int, rows: IntegerRows) -> None:
    """See `quantized.integer_rows.store_rows_`. The bytes are the same."""
    if layout.bits == 8 and rows.group_scales is not None:
        integer_rows.store_rows_(storage, layout, first_row, rows)
        return
    integers, scales = rows.integers.contiguous(), rows.row_scales.float().contiguous()
    groups = None if rows.group_scales is None else rows.group_scales.contiguous()
    sizes = len(rows), layout.in_features, first_row
    call("lullm_store_rows", integers, groups, scales, storage, *sizes, layout.bits)


def store_groups_(storage: Tensor, layout: GridLayout, first_row: int, rows: GridRows) -> None:
    """See `quantized.grid.store_groups_`. The bytes are the same."""
    if layout.grid.has_codes:
        store_groups_of_codes_(storage, layout, first_row, rows)
        return
    num_groups = layout.in_features // layout.grid.group_inputs
    scales = rows.factors.repeat_interleave(num_groups // rows.factors.shape[1], 1)
    mins = mins_without_codes(rows, layout.grid)
    if mins is not None:
        mins = mins.repeat_interleave(num_groups // mins.shape[1], 1)
    sizes = len(rows), layout.in_features, first_row
    call("lullm_store_groups", rows.digits.contiguous(), scales, mins, storage, *sizes, layout.format)


def store_narrow_(storage: Tensor, layout: NarrowLayout, first_row: int, rows: NarrowRows) -> None:
    """See `quantized.narrow.store_narrow_`. The bytes are the same."""
    rows = rows.in_groups_of(layout.group_inputs)
    codes, scales = rows.codes.contiguous(), rows.scales.contiguous()
    if not call("lullm_store_narrow", codes, scales, storage, len(rows), layout.in_features, first_row, layout.format):
        raise ModelLoadError(NOT_A_NUMBER)


def quantized_embedding(token_ids: Tensor, weight: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    if dtype not in DTYPES or layout.format == 4 or isinstance(layout, NarrowLayout):
        return expansion.quantized_embedding(token_ids, weight, layout, dtype)
    token_ids = token_ids.contiguous()
    out = new_result((token_ids.shape[0], layout.in_features), dtype)
    sizes = token_ids.shape[0], layout.out_features, layout.in_features
    if not call("lullm_quantized_embedding", token_ids, weight, out, *sizes, layout.format, DTYPES[dtype]):
        raise IndexError(f"a token id is outside the vocabulary of {layout.out_features}")
    return out


def quantized_linear(x: Tensor, weight: Tensor, layout: Layout, bias: Tensor | None) -> Tensor:
    return _linear(x, weight, layout, bias, None)


def quantized_logits(x: Tensor, weight: Tensor, layout: Layout) -> Tensor:
    dtype = DTYPES.get(x.dtype)
    if dtype is None or layout.in_features > _MAX_INPUTS:
        return expansion.quantized_logits(x, weight, layout)
    x = with_whole_rows(x)
    y = new_result((x.shape[0], layout.out_features), torch.float32)
    sizes = x.stride(0), x.shape[0], layout.in_features, layout.out_features
    call("lullm_quantized_logits", x, weight, y, *sizes, layout.format, dtype)
    return y


def quantized_gated_linear(
    x: Tensor, weight: Tensor, layout: Layout, bias: Tensor | None, activation: Activation
) -> Tensor:
    if layout.out_features % (2 * PANEL_ROWS):  # gates and ups may share a panel
        return gate(quantized_linear(x, weight, layout, bias), activation)
    return _linear(x, weight, layout, bias, activation)


def _linear(x: Tensor, weight: Tensor, layout: Layout, bias: Tensor | None, activation: Activation | None) -> Tensor:
    dtype = DTYPES.get(x.dtype)
    if dtype is None or layout.in_features > _MAX_INPUTS:
        if activation is not None:
            return expansion.quantized_gated_linear(x, weight, layout, bias, activation)
        return expansion.quantized_linear(x, weight, layout, bias)
    x = with_whole_rows(x)
    num_rows, num_outputs = x.shape[0], layout.out_features // (1 if activation is None else 2)
    y = new_result((num_rows, num_outputs), x.dtype)
    sizes = x.stride(0), num_outputs, num_rows, layout.in_features, layout.out_features
    kind = 0 if activation is None else ACTIVATIONS[activation]
    call("lullm_quantized_linear", x, weight, bias, y, *sizes, layout.format, kind, dtype)
    return y
