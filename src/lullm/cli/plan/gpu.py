"""Known GPUs, from their vendors' data sheets: memory, bandwidth, dense products in bfloat16, and links."""

from dataclasses import dataclass

from lullm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GPU:
    """One device.

    Attributes:
        memory_gib: all memory. gb_per_s: bandwidth of the memory. tflops: 10^12 operations a second in bfloat16,
            without sparsity. link_gb_per_s: to the other devices of a node, in one direction: NVLink, Infinity Fabric,
            PCIe.
    """

    memory_gib: float
    gb_per_s: float
    tflops: float
    link_gb_per_s: float


GPUS = {
    "A10": GPU(24, 600, 125, 32),
    "A100-40": GPU(40, 1555, 312, 300),
    "A100-80": GPU(80, 2039, 312, 300),
    "B200": GPU(180, 8000, 2250, 900),
    "H100": GPU(80, 3350, 989, 450),
    "H100-PCIe": GPU(80, 2000, 756, 64),
    "H200": GPU(141, 4800, 989, 450),
    "L4": GPU(24, 300, 121, 32),
    "L40S": GPU(48, 864, 362, 32),
    "MI300X": GPU(192, 5300, 1307, 448),
    "RTX3090": GPU(24, 936, 71, 32),
    "RTX4090": GPU(24, 1008, 165, 32),
    "RTX5090": GPU(32, 1792, 209, 64),
}


def known_gpu(name: str) -> GPU:
    """The GPU of a name, in any case. Raises ConfigError: it is not in `GPUS`."""
    for known, gpu in GPUS.items():
        if known.lower() == name.lower():
            return gpu
    raise ConfigError(
        f"--gpu {name} is not known; known are {', '.join(GPUS)}; for another one give --memory, --bandwidth, --tflops "
        "and --link"
    )
