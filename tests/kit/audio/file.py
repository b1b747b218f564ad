"""Files of sounds, written by hand."""

import struct

import numpy as np

EXTENSIBLE = 0xFFFE


def wav(
    samples: np.ndarray, rate: int = 16_000, bits: int = 16, is_float: bool = False, extends: bool = False
) -> bytes:
    """A WAV file of samples from -1 to 1, `[N]` or `[N, channels]`."""
    frames = samples[:, None] if samples.ndim == 1 else samples
    if is_float:
        data = frames.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        data = (np.round(frames * 127) + 128).astype(np.uint8).tobytes()
    else:
        wide = np.round(frames * ((1 << (bits - 1)) - 1)).astype("<i4")
        data = wide.view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()
    kind, channels = 3 if is_float else 1, frames.shape[1]
    width = bits // 8 * channels
    header = struct.pack("<HHIIHH", EXTENSIBLE if extends else kind, channels, rate, rate * width, width, bits)
    if extends:
        header += struct.pack(
            "<HHIH14s", 22, bits, 0, kind, b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"
        )
    chunks = [(b"fmt ", header), (b"LIST", b"abc"), (b"data", data)]
    body = b"".join(name + struct.pack("<I", len(each)) + each + bytes(len(each) % 2) for name, each in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body
