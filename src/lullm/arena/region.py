"""Region: inside a `with`, torch's factories (`torch.empty`, `nn.Linear(...)`) allocate from an arena.

It is a torch function mode of the calling thread, not an allocator hook: other threads, and code after the `with`, are
not affected. Models of this package are built on the meta device and do not need it; models of other packages do.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from lullm.arena.driver.dlpack import over_storage

_EMPTY: frozenset[Callable[..., Any]] = frozenset(
    (torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted,
     torch.Tensor.new_empty, torch.Tensor.new_empty_strided)
)  # fmt: skip
_CONSTANT: Mapping[Callable[..., Any], int] = {
    torch.zeros: 0, torch.zeros_like: 0, torch.Tensor.new_zeros: 0,
    torch.ones: 1, torch.ones_like: 1, torch.Tensor.new_ones: 1,
}  # fmt: skip
_COMPUTED: frozenset[Callable[..., Any]] = frozenset(
    (torch.full, torch.full_like, torch.Tensor.new_full, torch.tensor, torch.Tensor.new_tensor, torch.scalar_tensor,
     torch.arange, torch.linspace, torch.logspace, torch.eye, torch.tril_indices, torch.triu_indices, torch.randperm,
     torch.rand, torch.rand_like, torch.randn, torch.randn_like, torch.randint, torch.randint_like)
)  # fmt: skip
"""Torch computes these, and the result is copied into the arena: so the values are torch's own, also random ones."""


class ArenaMemory(Protocol):
    """The part of an arena that a region uses."""

    device: torch.device

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor: ...


class Region(TorchFunctionMode):
    """Serves the dense tensors that torch's factories make for the arena's device.

    Torch makes all others: tensors for another device (`device='meta'`), sparse or pinned ones, those with `out=`, and
    results of operations (`a + b`, `x.to(...)`, `clone`). For a tensor that does not fit the factory raises
    CacheSizeError (LullmError if the arena is closed or released); it never allocates elsewhere.
    """

    def __init__(self, arena: ArenaMemory):
        super().__init__()
        self._arena = arena

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not self._serves(func, args, kwargs):
            return func(*args, **kwargs)
        if func in _COMPUTED:
            made = func(*args, **kwargs)
            tensor = self._place(made).copy_(made.detach())
        else:
            made = func(*args, **{**kwargs, "device": "meta"})  # shape, strides and dtype, without memory
            tensor = self._place(made)
            if func in _CONSTANT:
                tensor.fill_(_CONSTANT[func])
        return tensor.requires_grad_(made.requires_grad)

    def _serves(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        if func not in _EMPTY and func not in _CONSTANT and func not in _COMPUTED:
            return False
        if kwargs.get("out") is not None or kwargs.get("pin_memory") or kwargs.get("names") is not None:
            return False
        if kwargs.get("layout") not in (None, torch.strided):
            return False
        device = kwargs.get("device")
        if device is None:
            device = torch.get_default_device()
            # `*_like` and `new_*` take the device of their tensor, and `torch.tensor` that of tensor data.
            if args and isinstance(args[0], torch.Tensor):
                if args[0].layout is not torch.strided:
                    return False
                device = args[0].device
        device = torch.device(device)
        if device.type != self._arena.device.type or device.type == "cpu":
            return device.type == self._arena.device.type
        index = torch.accelerator.current_device_index() if device.index is None else device.index
        return index == self._arena.device.index

    def _place(self, plan: torch.Tensor) -> torch.Tensor:
        """Memory of the arena for a tensor like `plan`, with its strides."""
        if plan.is_contiguous():
            return self._arena.empty(plan.shape, plan.dtype)
        extent = 1 + sum((size - 1) * stride for size, stride in zip(plan.shape, plan.stride(), strict=True))
        return over_storage(self._arena.empty((extent,), plan.dtype), plan.dtype, plan.shape, plan.stride())
