"""The kernels run on the GPU if there is one, and through Triton's interpreter if not (see the root's conftest)."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "bench"))  # gpu_parts: the cases at production shapes

if find_spec("triton") is None:  # there is none for this platform
    collect_ignore_glob = ["*"]
else:
    import triton

    if triton.knobs.runtime.interpret:
        import kit.device.quick_interpreter  # noqa: F401
