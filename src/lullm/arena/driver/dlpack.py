"""Tensors over memory that torch did not allocate, by DLPack (https://dmlc.github.io/dlpack/latest/c_api.html).

The host and every device go through the same code.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch.utils.dlpack import from_dlpack

_UINT = 1  # DLDataTypeCode
_CAPSULE_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    """DLTensor, with DLDevice and DLDataType written out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("num_dims", ctypes.c_int32),
        ("dtype_code", ctypes.c_uint8),
        ("dtype_bits", ctypes.c_uint8),
        ("dtype_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _ManagedTensor(ctypes.Structure):
    """DLManagedTensor. `export` is the manager's context: the address of the `_Export` that owns this struct."""

    _fields_ = (("tensor", _Tensor), ("export", ctypes.c_void_p), ("deleter", _Deleter))


_python = ctypes.PyDLL(None)  # a separate handle: argument types on the shared one would change it for other users
_python.Py_IncRef.argtypes = _python.Py_DecRef.argtypes = (ctypes.c_void_p,)
_python.Py_IncRef.restype = _python.Py_DecRef.restype = None
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _forget(managed: int) -> None:
    """Called by torch, from any thread, when the last view of the memory is gone."""
    _python.Py_DecRef(_ManagedTensor.from_address(managed).export)


_deleter = _Deleter(_forget)
_python.Py_IncRef(id(_deleter))  # at exit, tensors may outlive this module


class _Export:
    """Keeps the owner of the tensor's memory alive. Torch holds one reference to it, as an integer."""

    def __init__(self, address: int, num_bytes: int, device: tuple[int, int], owner: object):
        self.owner = owner
        self.shape = (ctypes.c_int64 * 1)(num_bytes)
        tensor = _Tensor(address, *device, 1, _UINT, 8, 1, self.shape, None, 0)
        self.managed = _ManagedTensor(tensor, id(self), _deleter)


def view(address: int, num_bytes: int, device: tuple[int, int], owner: object) -> torch.Tensor:
    """A tensor of uint8 `[num_bytes]` over the memory at `address`, which may not be zero.

    Args:
        device: (DLDeviceType, index).
        owner: held until the last tensor that shares the memory is gone.
    """
    export = _Export(address, num_bytes, device, owner)
    capsule = _python.PyCapsule_New(ctypes.addressof(export.managed), _CAPSULE_NAME, None)
    _python.Py_IncRef(id(export))
    try:
        return from_dlpack(capsule)
    except BaseException:
        if _python.PyCapsule_IsValid(capsule, _CAPSULE_NAME):  # torch took nothing and will not call the deleter
            _python.Py_DecRef(id(export))
        raise


def over_storage(
    memory: torch.Tensor, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int] | None = None
) -> torch.Tensor:
    """A new tensor, not a view, over all of `memory`'s storage; contiguous unless `strides` are given."""
    if strides is None:
        strides = torch.empty(shape, device="meta").stride()
    tensor = torch.empty(0, dtype=dtype, device=memory.device)
    return tensor.set_(memory.untyped_storage(), 0, torch.Size(shape), tuple(strides))


def same_memory(tensor: torch.Tensor, device: tuple[int, int], owner: object) -> torch.Tensor:
    """The same tensor, strides included, which holds `owner` instead of its former owner."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = view(tensor.data_ptr(), length * tensor.itemsize if tensor.numel() else 1, device, owner)
    return over_storage(flat, tensor.dtype, tensor.shape, tensor.stride())
