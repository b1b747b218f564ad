"""Triton's interpreter, made to work with today's NumPy, and quicker. Import it before a kernel is interpreted."""

import functools
import inspect

import triton.language as tl
import triton.runtime.interpreter as interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patch_tensor_with_index(tensor, *rest):
    """From NumPy 2.4 on an array of one element is no integer; the interpreter of Triton 3.6 relies on it."""
    _patch_tensor(tensor, *rest)
    tensor.__index__ = lambda self: self.handle.data.item()


@functools.cache
def _names(place):
    return [name for name, member in inspect.getmembers(place) if tl.core.is_builtin(member)]


def _patch_known(place, *rest):
    """What is called with an interpreter behind it: looked for at every launch, that was a fifth of a kernel's time."""
    for name in _names(place):
        member = getattr(place, name)
        if tl.core.is_builtin(member):  # a call within a launch finds what the launch has put there
            interpreter._patch_attr(place, name, member, *rest)


interpreter._patch_lang_tensor = _patch_tensor_with_index
interpreter._patch_builtin = _patch_known
