"""The dense ops over the native library: checks of layout, memory for results, one call each (see `recording`).

Bfloat16 and float32 are native; other dtypes go to the torch version. Weights of `embedding` and `linear` have been
through `pack_weight_`: which ones it changes is a function of shape and dtype alone, so nothing needs to be remembered.
What reads or writes the KV cache is in `native_attention`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lullm.ops import activation as torch_activation
from lullm.ops import in_place, torch_cpu
from lullm.ops.cache.layer_cache import HeadNorm
from lullm.ops.cpu.recording import call, new_result
from lullm.types.arithmetic import Activation
from lullm.units import round_up

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""The types that native kernels have, with their numbers in `csrc/dtype.h`."""

ACTIVATIONS: dict[Activation, int] = {"silu": 1, "gelu": 2, "gelu_tanh": 3, "relu": 4, "relu2": 6}
"""Their numbers in `csrc/dtype.h`; 0: none."""

_LINE, _FEW_ROWS, _FEW_OUTPUTS = 32, 64, 1024
"""Results of more rows and outputs pass by the cache, a line at a time: their rows begin at multiples of this."""


def set_num_threads(num_threads: int) -> None:
    """How many threads the native ops use, the caller's included; at first as many as the process may run on."""
    call("lullm_set_num_threads", num_threads)


def pack_weight_(weight: Tensor) -> None:
    """Rearrange a weight `[out, in]` in place into the order in which `linear` and `embedding` read it. Blocking.

    To be called once, when the weight is complete. It keeps shape and dtype, but rows are no longer rows. A temporary
    copy of a few rows per thread is all the memory it takes.
    """
    if weight.dtype in DTYPES and weight.numel():
        assert weight.is_contiguous(), "packed in place"
        call("lullm_pack_weight", weight, *weight.shape, DTYPES[weight.dtype])


def unpack_weight_(weight: Tensor) -> None:
    """Undo `pack_weight_`: for an update of some rows, or for reading the weight."""
    if weight.dtype in DTYPES and weight.numel():
        assert weight.is_contiguous(), "unpacked in place"
        call("lullm_unpack_weight", weight, *weight.shape, DTYPES[weight.dtype])


def with_whole_rows(x: Tensor) -> Tensor:
    """x `[T, N]`, or a copy of it, whose rows are each in one piece."""
    return x if x.stride(1) == 1 else x.contiguous()


def embedding(token_ids: Tensor, weight: Tensor) -> Tensor:
    dtype = DTYPES.get(weight.dtype)
    if dtype is None:
        return torch_cpu.embedding(token_ids, weight)
    vocab_size, hidden_size = weight.shape
    num_tokens = token_ids.shape[0]
    out = new_result((num_tokens, hidden_size), weight.dtype)
    if not call("lullm_embedding", token_ids.contiguous(), weight, out, num_tokens, vocab_size, hidden_size, dtype):
        raise IndexError(f"a token id is outside the vocabulary of {vocab_size}")
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    dtype = DTYPES.get(weight.dtype)
    if dtype is None:
        return torch_cpu.linear(x, weight, bias)
    x = with_whole_rows(x)
    num_rows, num_outputs = x.shape[0], weight.shape[0]
    row_len = num_outputs
    if num_rows > _FEW_ROWS and num_outputs > _FEW_OUTPUTS:
        row_len = round_up(num_outputs, _LINE)
    y = new_result((num_rows, row_len), x.dtype)[:, :num_outputs]
    call("lullm_linear", x, weight, bias, y, x.stride(0), y.stride(0), num_rows, weight.shape[1], num_outputs, dtype)
    return y


def logits(x: Tensor, weight: Tensor) -> Tensor:
    dtype = DTYPES.get(weight.dtype)
    if dtype is None:
        return torch_cpu.logits(x, weight)
    x = with_whole_rows(x)
    num_rows, vocab_size = x.shape[0], weight.shape[0]
    y = new_result((num_rows, vocab_size), torch.float32)
    call("lullm_logits", x, weight, y, x.stride(0), num_rows, weight.shape[1], vocab_size, dtype)
    return y


def gated_linear(x: Tensor, gate_up_weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    dtype = DTYPES.get(gate_up_weight.dtype)
    if dtype is None:
        return torch_cpu.gated_linear(x, gate_up_weight, bias, activation)
    x = with_whole_rows(x)
    num_rows, num_outputs = x.shape[0], gate_up_weight.shape[0]
    y = new_result((num_rows, num_outputs // 2), x.dtype)
    sizes = x.stride(0), num_rows, gate_up_weight.shape[1], num_outputs
    is_done = call("lullm_gated_linear", x, gate_up_weight, bias, y, *sizes, ACTIVATIONS[activation], dtype)
    return y if is_done else gate(linear(x, gate_up_weight, bias), activation)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    dtype = DTYPES.get(x.dtype)
    if dtype is None:
        return torch_cpu.rms_norm(x, weight, eps)
    size = x.shape[-1]
    if x.dim() == 3 and has_whole_heads(x):
        num_heads, stride = x.shape[1], x.stride(0)
    elif x.dim() == 2 and x.stride(1) == 1:
        num_heads, stride = 1, x.stride(0)
    else:
        x = x.contiguous()
        num_heads, stride = 1, size
    y = new_result(x.shape, x.dtype)
    _norm_rows(x, y, weight, eps, (x.numel() // (num_heads * size), num_heads, stride, num_heads * size))
    return y


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> None:
    if x.dtype in DTYPES and (x.stride(1) == 1 if x.dim() == 2 else has_whole_heads(x)):
        num_heads = 1 if x.dim() == 2 else x.shape[1]
        _norm_rows(x, x, weight, eps, (x.shape[0], num_heads, x.stride(0), x.stride(0)))
    else:
        torch_cpu.rms_norm_(x, weight, eps)


def _norm_rows(x: Tensor, y: Tensor, weight: Tensor, eps: float, sizes: tuple[int, int, int, int]) -> None:
    """`sizes`: rows, heads of a row, the strides of rows of x and y."""
    num_rows, num_heads, x_stride, y_stride = sizes
    ordered = x_stride, y_stride, num_rows, num_heads, weight.shape[0]
    call("lullm_rms_norm", x, None, weight, y, None, *ordered, eps, DTYPES[x.dtype])


def norm_shares_(
    parts: Sequence[tuple[Tensor, Tensor]], num_shares: int, eps: float, all_reduce_: Callable[[Tensor], None]
) -> None:
    if any(x.dtype not in DTYPES or x.stride(1) != 1 for x, _ in parts):
        in_place.norm_shares_(parts, num_shares, eps, all_reduce_)
        return
    num_rows, stride = len(parts[0][0]), len(parts)
    sums = new_result((num_rows, stride), torch.float32)
    columns = [sums.data_ptr() + number * sums.element_size() for number in range(stride)]
    for (x, _), at in zip(parts, columns, strict=True):
        call("lullm_sum_squares", x, at, x.stride(0), num_rows, x.shape[1], stride, DTYPES[x.dtype])
    all_reduce_(sums)
    for (x, weight), at in zip(parts, columns, strict=True):
        sizes = x.stride(0), num_rows, x.shape[1], stride, num_shares
        call("lullm_norm_by_squares", x, weight, at, *sizes, eps, DTYPES[x.dtype])


def has_whole_heads(x: Tensor) -> bool:
    """Is each row `[heads, D]` of `x [T, heads, D]` in one piece?"""
    return x.stride(2) == 1 and x.stride(1) == x.shape[2]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    dtype = DTYPES.get(x.dtype)
    if dtype is None:
        return torch_cpu.add_rms_norm(x, residual, weight, eps)
    x, residual = x.contiguous(), residual.contiguous()
    num_rows, size = x.shape
    y = new_result(x.shape, x.dtype)
    call("lullm_rms_norm", x, residual, weight, y, residual, size, size, num_rows, 1, size, eps, dtype)
    return y, residual


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    dtype = DTYPES.get(x.dtype)
    if dtype is None:
        return torch_cpu.layer_norm(x, weight, bias, eps)
    x = with_whole_rows(x)
    y = new_result(x.shape, x.dtype)
    call("lullm_layer_norm", x, weight, bias, y, x.stride(0), *x.shape, eps, dtype)
    return y


def activate(x: Tensor, activation: Activation) -> Tensor:
    """x `[T, N]`. See `Ops.activate`."""
    return _activate(x, activation, False)


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """`activation(gate) * up` of `gate_up [T, 2 * I]`, gates first -> `[T, I]`, rounded once."""
    return _activate(gate_up, activation, True)


def _activate(x: Tensor, activation: Activation, has_ups: bool) -> Tensor:
    dtype = DTYPES.get(x.dtype)
    if dtype is None:
        return torch_activation.gate(x, activation) if has_ups else torch_activation.activate(x, activation)
    x = with_whole_rows(x)
    num_rows, size = x.shape[0], x.shape[1] // 2 if has_ups else x.shape[1]
    y = new_result((num_rows, size), x.dtype)
    call("lullm_activate", x, y, x.stride(0), num_rows, size, ACTIVATIONS[activation], has_ups, dtype)
    return y


def add_(total: Tensor, x: Tensor) -> None:
    if total.dtype in DTYPES and total.is_contiguous() and x.is_contiguous():
        call("lullm_add", total, x, total.numel(), DTYPES[total.dtype])
    else:
        in_place.add_(total, x)


def xielu_(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> None:
    numbers = alpha_p, alpha_n, beta, eps
    if x.dtype in DTYPES and x.is_contiguous() and all(number.dtype == x.dtype for number in numbers):
        call("lullm_xielu", x, *numbers, x.numel(), DTYPES[x.dtype])
    else:
        in_place.xielu_(x, alpha_p, alpha_n, beta, eps)


def join(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype not in DTYPES or x.dtype != y.dtype or x.stride(1) != 1 or y.stride(1) != 1:
        return in_place.join(x, y)
    sizes = x.shape[1] * x.itemsize, y.shape[1] * y.itemsize
    joined = new_result((len(x), x.shape[1] + y.shape[1]), x.dtype)
    strides = x.stride(0) * x.itemsize, y.stride(0) * y.itemsize
    call("lullm_join", x, y, joined, *strides, len(x), *sizes)
    return joined


def scale_(x: Tensor, factor: float) -> None:
    if x.dtype in DTYPES and x.is_contiguous():
        call("lullm_scale", x, x.numel(), factor, DTYPES[x.dtype])
    else:
        in_place.scale_(x, factor)


def scale_by_(x: Tensor, factor: Tensor) -> None:
    if x.dtype in DTYPES and factor.dtype == x.dtype and x.is_contiguous():
        call("lullm_scale_by", x, factor, x.numel(), DTYPES[x.dtype])
    else:
        in_place.scale_by_(x, factor)


def rotate_(x: Tensor, norm: HeadNorm | None, positions: Tensor, cos_sin_cache: Tensor) -> None:
    if x.dtype not in DTYPES or x.stride(2) != 1:
        return in_place.rotate_(x, norm, positions, cos_sin_cache)
    weight, eps = (None, 0.0) if norm is None else (norm.q_weight, norm.eps)
    call("lullm_rotate", x, weight, positions, cos_sin_cache, x.stride(0), x.stride(1), *x.shape, eps, DTYPES[x.dtype])


def soft_cap_(x: Tensor, cap: float) -> None:
    if x.dtype in DTYPES and x.is_contiguous():
        call("lullm_soft_cap", x, x.numel(), cap, DTYPES[x.dtype])
    else:
        in_place.soft_cap_(x, cap)
