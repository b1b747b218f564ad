"""Checksums: XXH3-64 of tensors' bytes. One core does 13 GB/s, which is faster than most copies."""

import torch
import xxhash


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, flat; shares its memory."""
    return tensor.view(-1).view(torch.uint8)


def checksum(tensor: torch.Tensor) -> int:
    """The checksum of a contiguous tensor's bytes."""
    return xxhash.xxh3_64_intdigest(bytes_of(tensor).cpu().numpy().data)
