"""Matrices of integers from compressed-tensors, AWQ, GPTQ and HQQ, as an `IntegerTensor`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lullm.config.encoding.scheme import IntegerScheme
from lullm.units import cdiv
from lullm.weights.encoding.integer import AWQ_ORDER, IntegerTensor, check, stated_shape, unpack, unpack_columns

Parts = Mapping[str, Tensor]
"""The parts of a matrix, by the suffixes of their names."""

_GPTQ_ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}
"""One in every integer of a word. GPTQModel subtracts it from and adds it to whole words, so a zero point 0 borrows."""


def encode_integers(name: str, parts: Parts, scheme: IntegerScheme) -> IntegerTensor:
    """The matrix of these parts. Raises ModelLoadError: a part is missing, or they do not fit together."""
    for suffix in _NEEDED[scheme.packing]:
        check(name, suffix in parts, f"missing tensor {name.removesuffix('.weight')}{suffix}")
    make = {"plain": _plain, "rows": _rows, "awq": _awq, "gptq": _gptq, "hqq": _hqq}[scheme.packing]
    return make(name, parts, scheme)


_NEEDED = {
    "plain": (".weight", ".weight_scale"),
    "rows": (".weight_packed", ".weight_scale", ".weight_shape"),
    "awq": (".qweight", ".scales"),
    "hqq": (".W_q", ".scale", ".zero", ".shape"),
    "gptq": (".qweight", ".qzeros", ".scales"),
}


def _plain(name: str, parts: Parts, scheme: IntegerScheme) -> IntegerTensor:
    integers = parts[".weight"]
    _check_type(name, integers, torch.int8, 2)
    zeros = parts.get(".weight_zero_point")
    check(name, scheme.is_symmetric or zeros is not None, "its zero points are missing")
    return _tensor(name, scheme, lambda first, last: integers[first:last], integers.shape, 0, parts[".weight_scale"],
                   zeros=None if scheme.is_symmetric else zeros, group_of=parts.get(".weight_g_idx"))  # fmt: skip


def _rows(name: str, parts: Parts, scheme: IntegerScheme) -> IntegerTensor:
    words, stated, centre = parts[".weight_packed"], parts[".weight_shape"], 1 << (scheme.bits - 1)
    _check_type(name, words, torch.int32, 2)
    num_rows, num_inputs = stated_shape(name, stated)
    is_right = (num_rows, cdiv(num_inputs * scheme.bits, 32)) == words.shape
    check(name, is_right, f"{list(words.shape)} words do not hold a matrix {[num_rows, num_inputs]}")
    zeros = parts.get(".weight_zero_point")
    check(name, scheme.is_symmetric or zeros is not None, "its zero points are missing")
    if scheme.is_symmetric:
        zeros = None
    elif zeros is not None and zeros.dtype == torch.int32:
        _check_type(name, zeros, torch.int32, 2)
        zeros = unpack_columns(zeros, scheme.bits).t()[:num_rows]
    elif zeros is not None:
        zeros = zeros.short() + centre
        check(name, bool(((zeros >= 0) & (zeros < 2 * centre)).all()), "a zero point is none of its bits")

    def read(first: int, last: int) -> Tensor:
        return unpack(words[first:last], scheme.bits)[:, :num_inputs]

    shape = torch.Size((num_rows, num_inputs))
    return _tensor(name, scheme, read, shape, centre, parts[".weight_scale"], zeros, parts.get(".weight_g_idx"))


def _awq(name: str, parts: Parts, scheme: IntegerScheme) -> IntegerTensor:
    """A symmetric scheme has signed digits and no zero points."""
    words, scales, centre = parts[".qweight"], parts[".scales"], 1 << (scheme.bits - 1)
    zeros = None if scheme.is_symmetric else parts.get(".qzeros")
    check(name, scheme.is_symmetric or zeros is not None, f"missing tensor {name.removesuffix('.weight')}.qzeros")
    _check_columns(name, scales, *((words,) if zeros is None else (words, zeros)))
    turn = centre if scheme.is_symmetric else 0

    def read(first: int, last: int) -> Tensor:
        start = first // 8
        columns = unpack(words[:, start : cdiv(last, 8)], scheme.bits, AWQ_ORDER)
        return columns[:, first - 8 * start : last - 8 * start].t() ^ turn

    shape = torch.Size((8 * words.shape[1], len(words)))
    unpacked = None if zeros is None else unpack(zeros, scheme.bits, AWQ_ORDER).t()
    return _tensor(name, scheme, read, shape, centre, scales.t(), unpacked, None)


def _gptq(name: str, parts: Parts, scheme: IntegerScheme) -> IntegerTensor:
    words, zeros, scales, per_word = parts[".qweight"], parts[".qzeros"], parts[".scales"], 32 // scheme.bits
    _check_columns(name, scales, words, zeros)
    order = parts.get(".g_idx")
    check(name, order is not None or not scheme.has_order, "g_idx is missing, which desc_act needs")
    if scheme.zero_offset:
        zeros = zeros + _GPTQ_ONES[scheme.bits]

    def read(first: int, last: int) -> Tensor:
        return unpack_columns(words[:, first:last], scheme.bits)

    shape = torch.Size((words.shape[1], per_word * len(words)))
    unpacked = unpack(zeros, scheme.bits).t()
    return _tensor(name, scheme, read, shape, 1 << (scheme.bits - 1), scales.t(), unpacked, order)


_HQQ_FACTS = {
    "nbits", "group_size", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero",
    "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise", "optimize",
    "round_zero",
}  # fmt: skip
HQQ_SUFFIXES = (*_NEEDED["hqq"], *sorted(f".{fact}" for fact in _HQQ_FACTS))
"""Every matrix has its facts in separate tensors."""


def _hqq(name: str, parts: Parts, scheme: IntegerScheme) -> IntegerTensor:
    words, per_byte, size = parts[".W_q"], 8 // scheme.bits, scheme.group_size
    _check_type(name, words, torch.uint8, 2)
    num_rows, num_inputs = stated_shape(name, parts[".shape"])
    facts = {".nbits": scheme.bits, ".axis": 1, ".view_as_float": 0, ".quant_scale": 0, ".quant_zero": 0}
    for suffix, value in facts.items():
        stored = parts.get(suffix)
        is_same = stored is None or stored.numel() == 1 and int(stored) == value
        check(name, is_same, f"{suffix[1:]} is not {value}, as config.json says")
    size = num_inputs if size is None else size
    fits = words.shape[1] == size and num_inputs % size == 0 and per_byte * words.numel() == num_rows * num_inputs
    check(name, fits, f"{list(words.shape)} bytes do not hold a matrix {[num_rows, num_inputs]} in groups of {size}")
    num_groups = num_inputs // size

    def read(first: int, last: int) -> Tensor:
        groups = torch.arange(first * num_groups, last * num_groups)
        shifts = 8 - scheme.bits * (groups // len(words) + 1)
        values = words[groups % len(words)] >> shifts.to(torch.uint8).unsqueeze(1) & (2**scheme.bits - 1)
        return values.view(last - first, num_inputs)

    scales, zeros = parts[".scale"], parts[".zero"]
    fits = scales.numel() == zeros.numel() == num_rows * num_groups and bool(zeros.float().isfinite().all())
    check(name, fits, f"its scales {list(scales.shape)} and zero points {list(zeros.shape)} do not fit")
    shape, by_row = torch.Size((num_rows, num_inputs)), (num_rows, num_groups)
    return _tensor(name, replace(scheme, group_size=size), read, shape, 1 << (scheme.bits - 1),
                   scales.reshape(by_row), zeros.reshape(by_row).float(), None)  # fmt: skip


def _tensor(
    name: str,
    scheme: IntegerScheme,
    read: Callable[[int, int], Tensor],
    shape: torch.Size,
    centre: int,
    scales: Tensor,
    zeros: Tensor | None,
    group_of: Tensor | None,
) -> IntegerTensor:
    """The tensor, after the checks that all layouts have in common. scales, zeros: `[out or 1, groups]`, or one number;
    zeros None: the centre.
    """
    num_rows, num_inputs = shape
    scales = _by_row(scales)
    size = num_inputs if scheme.group_size is None else scheme.group_size
    num_groups = cdiv(num_inputs, size)
    allowed = [(num_rows, num_groups)] if scheme.group_size is not None else [(num_rows, 1), (1, 1)]
    told = f"scales {list(scales.shape)} of {scales.dtype}"
    check(name, tuple(scales.shape) in allowed and scales.is_floating_point(),
          f"{told} do not fit a matrix {list(shape)} with a group size of {size}")  # fmt: skip
    check(name, bool(scales.float().isfinite().all()), "a scale is infinite or NaN")
    if zeros is not None:
        zeros = _by_row(zeros)
        check(name, zeros.shape == scales.shape and (scheme.packing == "hqq" or not zeros.is_floating_point()),
              f"zero points {list(zeros.shape)} of {zeros.dtype} do not fit scales {list(scales.shape)}")  # fmt: skip
    return IntegerTensor(
        name=name,
        read=read,
        zeros=centre if zeros is None else zeros,
        scales=scales,
        group_of=_groups(name, group_of, num_inputs, size),
        centre=centre,
        bits=8 if scheme.packing == "plain" else scheme.bits,
        num_inputs=num_inputs,
        first=0,
        last=num_rows,
    )


def _groups(name: str, stated: Tensor | None, num_inputs: int, size: int) -> Tensor | None:
    """The group of each input; None: whole runs of one size."""
    in_order = torch.arange(num_inputs) // size
    usual = None if num_inputs % size == 0 else in_order
    if stated is None or bool((stated == -1).all()):  # -1: nothing was ordered
        return usual
    told = f"g_idx {list(stated.shape)} of {stated.dtype} does not say the group of each of {num_inputs} inputs"
    check(name, stated.shape == (num_inputs,) and not stated.is_floating_point(), told)
    stated = stated.long()
    check(name, bool(((stated >= 0) & (stated <= in_order[-1])).all()), "g_idx names a group without scales")
    return usual if torch.equal(stated, in_order) else stated


def _by_row(values: Tensor) -> Tensor:
    return values.reshape(1, 1) if values.numel() == 1 else values.unsqueeze(1) if values.dim() == 1 else values


def _check_type(name: str, tensor: Tensor, dtype: torch.dtype, dim: int) -> None:
    is_right = tensor.dtype == dtype and tensor.dim() == dim and tensor.numel() > 0
    check(name, is_right, f"its integers are {list(tensor.shape)} of {tensor.dtype}, not a matrix of {dtype}")


def _check_columns(name: str, scales: Tensor, *words: Tensor) -> None:
    """Check the columns of matrices that are stored with a column per output."""
    for packed in words:
        _check_type(name, packed, torch.int32, 2)
    check(name, scales.dim() == 2, f"its scales {list(scales.shape)} are no matrix")
