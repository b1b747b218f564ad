"""Triton's interpreter in a third of its time: the same numbers, without what it does again and again. Import it."""

import dataclasses
import functools
import inspect

import kit.device.interpreter_patch  # noqa: F401
import numpy as np
import triton.language as tl
import triton.runtime.interpreter as interpreter
from triton.language.semantic import TritonSemantic

core = tl.core


def _within_launch(call):
    """A kernel's own functions find the language as the launch has patched it; Triton patches it at each call."""
    langs = functools.cache(lambda fn: [each for each in (tl, core) if each in _modules(fn)])

    def within_launch(self, *args, **kwargs):
        if any(core.is_builtin(lang.load) for lang in langs(self.fn)):
            return call(self, *args, **kwargs)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    return within_launch


def _modules(fn):
    return [value for value in fn.__globals__.values() if inspect.ismodule(value)]


def _patch_attr(place, name, member, builder, scope):
    """Past the wrapper that looks whether `_semantic` is there."""
    work = getattr(member, "__wrapped__", member)

    def patched(*args, **kwargs):
        kwargs["_semantic"] = interpreter.interpreter_semantic
        return work(*args, **kwargs)

    scope.set_attr(place, name, patched)


def _np_dtype_of(original):
    """Triton builds its table at each call."""
    scalars = [kind for kind in vars(tl).values() if type(kind) is tl.dtype and kind.name != "void"]
    known = {kind.name: original(kind) for kind in scalars}

    def np_dtype(kind):
        kind = kind.scalar
        return np.dtype(np.uint64) if isinstance(kind, tl.pointer_type) else known[kind.name]

    return np_dtype


def _computation_type(original):
    """Of two scalar types, which their names tell apart."""
    known = {}

    def computation_type(self, a, a_is_scalar, b, b_is_scalar, div_or_mod):
        key = a.name, a_is_scalar, b.name, b_is_scalar, div_or_mod
        if key not in known:
            known[key] = original(self, a, a_is_scalar, b, b_is_scalar, div_or_mod)
        return known[key]

    return computation_type


@functools.cache
def _shaped(*shape):
    """What all blocks, and all tensors, of a shape have in common; nothing writes to it."""
    sizes = core.tuple(shape)
    numel = core.validate_block_shape(sizes)
    return sizes, numel, f"<{sizes}, ", core.tuple([tl.constexpr(size) for size in shape]), tl.constexpr(numel)


def _block_type(original):
    def init(self, element_ty, shape):
        sizes = [core._unwrap_if_constexpr(size) for size in core._unwrap_if_constexpr(shape)]
        if not sizes:
            return original(self, element_ty, shape)
        self.element_ty = element_ty
        self.shape, self.numel, name, *_ = _shaped(*sizes)
        self.name = f"{name}{element_ty}>"

    return init


_SCALAR = core.tuple([]), tl.constexpr(1)


def _tensor(self, handle, kind):
    self.handle, self.type, self.dtype = handle, kind, kind.scalar
    self.shape, self.numel = _shaped(*kind.shape.values)[3:] if kind.is_block() else _SCALAR


interpreter._get_np_dtype = _np_dtype_of(interpreter._get_np_dtype)
interpreter._patch_attr = _patch_attr
interpreter.InterpretedFunction.__call__ = _within_launch(interpreter.InterpretedFunction.__call__)
TritonSemantic.computation_type_impl = _computation_type(TritonSemantic.computation_type_impl)
tl.block_type.__init__, tl.tensor.__init__ = _block_type(tl.block_type.__init__), _tensor
_builder = interpreter.interpreter_builder
assert not _builder.options.debug  # so what overflows is computed, and asserted nowhere: half of a kernel's time
_builder.options = dataclasses.replace(_builder.options, sanitize_overflow=False)
