"""A GPU for tests: `torch.cuda` and the driver over the host's memory, with kernels run by Triton's interpreter.

`FakeCuda` (`gpu.py`) replaces the functions through which code uses a GPU. So `device='cuda'` runs without changes:
`CudaDevice`, staging, graphs, arenas, benchmarks. A tensor on the device is a `DeviceTensor`, a subclass of a tensor of
the host, through which every torch function goes (`calls.py`). It refuses what a GPU refuses:

- tensors of the device and of the host do not mix, and a kernel takes none of the host's;
- a kernel runs on the current device of the thread, which starts as 0 in every thread;
- while a graph is recorded, waits, copies from unpinned memory and a second recording are errors.

What a GPU would do wrong without a word is a line in `faults`, which the test's end looks at:

- a stream that uses memory without waiting for the stream that has written it (`streams.py`);
- host memory that is written while a copy out of it may still be under way. A copy *to* the host leaves rubbish there
  until the host has waited for it (`copies.py`);
- memory that is unmapped, or given back inside a recording, while work may use it;
- host memory that is pinned, and a context that is made, on another device than the tensors'.

A replay runs the recorded launches again, with the arguments and grids of the recording and without a line of the code
that made them. It finds memory that was freed since, and fills all memory of the other graphs of its pool with rubbish
(`graphs.py`). Torch's allocator is kept in numbers (`allocator.py`).
"""

from fake_cuda.gpu import FakeCuda
from fake_cuda.tensors import DeviceTensor, PinnedTensor

__all__ = ["DeviceTensor", "FakeCuda", "PinnedTensor"]
