"""Triton's interpreter, made to work with today's NumPy. Import it before a kernel is interpreted."""

import triton.runtime.interpreter as interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patch_tensor_with_index(tensor, *rest):
    """From NumPy 2.4 on an array of one element is no integer; the interpreter of Triton 3.6 relies on it."""
    _patch_tensor(tensor, *rest)
    tensor.__index__ = lambda self: self.handle.data.item()


interpreter._patch_lang_tensor = _patch_tensor_with_index
