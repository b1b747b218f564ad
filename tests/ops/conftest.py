"""The native ops in each instruction set that this machine has, and torch's beside them."""

import pytest

from lullm.ops.cpu import native
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.selection import NATIVE_CPU_OPS, TORCH_CPU_OPS

LIBRARY = load_library()
ISAS = LIBRARY.available_isas if LIBRARY else ()


@pytest.fixture(params=ISAS)
def isa(request):
    """The name of one, which native ops use until the test ends, with three threads."""
    assert LIBRARY.handle.lullm_select_isa(request.param.encode())
    native.set_num_threads(3)
    yield request.param
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())


@pytest.fixture(params=["torch", *ISAS])
def ops(request):
    """Torch's ops, or the native ones in an instruction set."""
    if request.param == "torch":
        return TORCH_CPU_OPS
    assert absence() is None and LIBRARY.handle.lullm_select_isa(request.param.encode())
    request.addfinalizer(lambda: LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode()))
    return NATIVE_CPU_OPS
