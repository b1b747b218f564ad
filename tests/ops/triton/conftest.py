"""The kernels run on the GPU if there is one, and through Triton's interpreter if not (see the root's conftest)."""

from importlib.util import find_spec

if find_spec("triton") is None:  # there is none for this platform
    collect_ignore_glob = ["*"]
else:
    import triton
    import triton.runtime.interpreter as interpreter

    if triton.knobs.runtime.interpret:
        patch_tensor = interpreter._patch_lang_tensor

        def patch_tensor_with_index(tensor, *rest):
            """From NumPy 2.4 on an array of one element is no integer; the interpreter of Triton 3.6 relies on it."""
            patch_tensor(tensor, *rest)
            tensor.__index__ = lambda self: self.handle.data.item()

        interpreter._patch_lang_tensor = patch_tensor_with_index
