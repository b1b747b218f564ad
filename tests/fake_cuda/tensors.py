"""Tensors of the fake device, and of pinned host memory. Both lie in the host's memory."""

import contextlib

import torch
from torch.utils._pytree import tree_map_only

RUBBISH = 0xFB
"""Every byte of memory that holds nothing one may read: NaN or a huge negative number, in every type."""


class Present:
    """The fake GPU that is in torch's place now."""

    gpu = None


def call(func, args, kwargs):
    if Present.gpu is None:  # a thread that outlives the test
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    return Present.gpu.calls.run(func, args, kwargs)


class DeviceTensor(torch.Tensor):
    """On the fake device."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return call(func, args, kwargs or {})


class PinnedTensor(torch.Tensor):
    """Of host memory that a copy to the device need not wait for."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return call(func, args, kwargs or {})


def plain(tensor):
    """The same memory as a tensor of the host."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def all_plain(tree):
    return tree_map_only((DeviceTensor, PinnedTensor), plain, tree)


@contextlib.contextmanager
def unseen():
    """Torch's own functions, over tensors that any mode has made."""
    with torch._C.DisableTorchFunction(), torch.inference_mode():
        yield


def storage_of(tensor):
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage()


def address_of(tensor):
    """Of its storage: what streams are ordered by."""
    return storage_of(tensor).data_ptr()


def spoil(tensor):
    """Fill a tensor of the host with rubbish, its storage only where the tensor lies."""
    with unseen():
        if tensor.numel():
            torch.as_strided(tensor, tensor.shape, tensor.stride()).view(torch.uint8).fill_(RUBBISH)


def spoil_storage(storage):
    with unseen():
        if storage.nbytes():
            torch.empty(0, dtype=torch.uint8).set_(storage).fill_(RUBBISH)
