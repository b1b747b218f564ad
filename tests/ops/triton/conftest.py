"""The kernels run on the GPU if there is one, and through Triton's interpreter if not (see the root's conftest)."""

from importlib.util import find_spec

if find_spec("triton") is None:  # there is none for this platform
    collect_ignore_glob = ["*"]
else:
    import triton

    if triton.knobs.runtime.interpret:
        import interpreter_patch  # noqa: F401
