"""Damaged files of many architectures: an error that says what is wrong, or a model; no crash, bounded memory.

Seeded: a failure prints the architecture and the number of its case, which makes the same file again.
"""

import random
import resource
import struct

import gguf
import pytest
from kit.folder.gguf_files import FORMATS, write_gguf
from kit.model.families import CASES
from kit.model.golden import load_model, save_model

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.units import MIB
from lullm.weights.headers import check_headers

FAMILIES = [
    "Lfm2Moe", "Qwen3_5", "DeepseekV3", "GraniteMoeHybrid", "Qwen3Next", "NemotronH", "Glm4Moe", "Starcoder2", "Falcon",
    "FalconH1", "GPTNeoX", "Gemma3n", "Jamba", "Mamba", "Llama4", "Apertus", "HunYuanDenseV1", "HunYuanMoEV1", "Mpt",
]  # fmt: skip
NUM_CASES = 16
MOST_BYTES = 512 * MIB


def dimensions(content, name):
    """Where a tensor's header says its number of dimensions."""
    at = content.index(struct.pack("<Q", len(name)) + name.encode())
    return at + 8 + len(name)


def another_number(content, random_):
    """Of a dimension, of the format, or of the place of the contents."""
    name = random_.choice([tensor.name for tensor in gguf.GGUFReader(content.path).tensors])
    at = dimensions(content.data, name)
    count = struct.unpack_from("<I", content.data, at)[0]
    place = random_.randrange(count + 2)
    if place == count:
        struct.pack_into("<I", content.data, at + 4 + 8 * count, random_.choice([0, 1, 2, 8, 12, 39, 77]))
    else:
        offset = at + 4 + 8 * place if place < count else at + 8 + 8 * count
        old = struct.unpack_from("<Q", content.data, offset)[0]
        struct.pack_into("<Q", content.data, offset, random_.choice([0, 1, old + 1, 2 * old, old // 2, 32, 1 << 40]))


def another_name(content, random_):
    """That no model has, or that another tensor has."""
    names = [tensor.name for tensor in gguf.GGUFReader(content.path).tensors]
    old, new = random_.sample(names, 2)
    at = dimensions(content.data, old) - len(old)
    content.data[at : at + len(old)] = new[: len(old)].ljust(len(old), "x").encode()


def another_key(content, random_):
    """A byte or several of the metadata, which also makes keys be missing."""
    first = min(dimensions(content.data, tensor.name) for tensor in gguf.GGUFReader(content.path).tensors)
    for _ in range(random_.choice([1, 1, 2, 8])):
        content.data[random_.randrange(8, first)] = random_.choice([0, 1, 255, random_.randrange(256)])


def cut_off(content, random_):
    del content.data[random_.randrange(len(content.data)) :]


class Content:
    def __init__(self, path):
        self.path, self.data = path, bytearray(path.read_bytes())


@pytest.mark.parametrize("family", FAMILIES)
def test_damaged_files(tmp_path, family):
    save_model(tmp_path, family, next(iter(CASES[family].variants.values())))
    path, damaged = tmp_path / "model.gguf", tmp_path / "damaged.gguf"
    write_gguf(path, tmp_path, family, FORMATS.F32)
    load_model(path)
    before, num_refused = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for number in range(NUM_CASES):
        random_, content = random.Random(f"{family} {number}"), Content(path)
        random_.choice([another_number, another_number, another_name, another_key, cut_off])(content, random_)
        damaged.write_bytes(content.data)
        try:
            check_headers(ModelConfig.from_folder(damaged), damaged)
            load_model(damaged)
        except ModelLoadError as error:
            num_refused += 1
            assert len(str(error)) > 20, number
        except Exception as error:
            error.add_note(f"{family}, case {number}")
            raise
    assert num_refused > NUM_CASES // 2
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_BYTES
