"""The names of what each device back end calls, over the fake driver of the session."""

from typing import NamedTuple

import pytest
from kit.device.fake_driver import fake, fake_driver_path

__all__ = ["fake", "fake_driver_path"]


class Names(NamedTuple):
    reserve: str
    create: str
    map: str
    set_access: str | None
    unmap: str
    release: str
    free: str
    make_current: str
    unsupported: int


NAMES = {
    "cuda": Names("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
                  "cuMemAddressFree", "cuCtxSetCurrent", 801),
    "rocm": Names("hipMemAddressReserve", "hipMemCreate", "hipMemMap", "hipMemSetAccess", "hipMemUnmap",
                  "hipMemRelease", "hipMemAddressFree", "hipSetDevice", 801),
    "npu": Names("aclrtReserveMemAddress", "aclrtMallocPhysical", "aclrtMapMem", None, "aclrtUnmapMem",
                 "aclrtFreePhysical", "aclrtReleaseMemAddress", "aclrtSetDevice", 207000),
}  # fmt: skip
OUT_OF_MEMORY = {"cuda": 2, "rocm": 2, "npu": 207001}


@pytest.fixture(params=["cuda", "rocm", "npu"])
def kind(request):
    return request.param


@pytest.fixture
def names(kind):
    return NAMES[kind]


@pytest.fixture
def out_of_memory(kind):
    """The code that says so."""
    return OUT_OF_MEMORY[kind]
