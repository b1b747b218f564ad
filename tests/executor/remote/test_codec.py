"""What crosses to another process comes out as it went in, and nothing else crosses."""

import copy
import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
import torch
from kit.model.families import CASES
from kit.model.golden import SIZES, config_data

from lullm.config.model import ModelConfig
from lullm.executor.remote.codec import decode, encode
from lullm.types.draw import Draw, DrawParams
from lullm.types.parallel.experts import LayerExperts
from lullm.types.parallel.placement import placements
from lullm.types.sleep import Released, Residence, SleepCommand, SleepForecast, UsedBlocks
from lullm.types.step import StepPlan


def crossed(value):
    return decode(memoryview(bytearray(b"".join(bytes(part) for part in encode(value)))))


VALUES = {
    "atoms": [None, True, 3, -(2**63), 2**64 - 1, 0.1, "text", b"bytes"],
    "containers": [(1, (2, [3])), {1, 2}, frozenset({"a"}), {"a": (1,), 2: {}}, {(1, 2): "pair", None: 0}, ()],
    "path": Path("/a/b"),
    "names that are no UTF-8": [Path("/a/\udcff"), "\udcff \ue000", {"\ud800": 1}],
    "enum": Residence.OFFLOADED,
    "command": SleepCommand(1, (("weights", "offload"), ("kv_cache", "drop")), UsedBlocks([1, 2], []), "disk"),
    "released": Released(("weights",), 10, 5, 0.5, "locked"),
    "forecast": SleepForecast(1, ("weights",), 7, 3, 1.0, 4.0),
    "places": placements(2, 3),
    "experts": [LayerExperts(3, (5, 0), (1, 0), 1, "float32 [4, 8]"), {3: [(0, 1)], 7: []}],
    "structs": [StepPlan([]), Draw(1, 0, DrawParams(seed=5))],
    "dtype": torch.bfloat16,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_equal_and_of_the_same_types(value):
    found = crossed(value)
    assert found == value and repr(found) == repr(value)


def test_a_models_config(qwen3_folder, mixed_folder):
    for folder in (qwen3_folder, mixed_folder):
        config = ModelConfig.from_folder(folder)
        assert crossed([config, folder]) == [config, folder]


@pytest.mark.parametrize("family", CASES)
def test_the_config_of_every_family(family, tmp_path):
    for number, options in enumerate(CASES[family].variants.values()):
        given = {key: value for key, value in (SIZES | options).items() if value is not ...}
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "config.json").write_text(json.dumps(config_data(family, copy.deepcopy(given))))
        config = ModelConfig.from_folder(tmp_path / str(number))
        found = crossed(config)
        assert found == config and repr(found) == repr(config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (3, 4, 5)])
def test_tensors(dtype, shape):
    tensor = (torch.randn(shape) * 3).to(dtype)
    first, name, second = crossed((tensor, "x", {"it": tensor}))
    assert name == "x"
    for found in (first, second["it"]):
        assert found.dtype == dtype and found.shape == tensor.shape and torch.equal(found, tensor)


def test_a_strided_parameter_arrives_as_a_tensor_of_its_own():
    source = torch.nn.Parameter(torch.arange(12.0).view(3, 4).t())
    found = crossed(source)
    assert torch.equal(found, source) and not found.requires_grad
    found.add_(1)
    assert not torch.equal(found, source)


def test_a_tensor_is_not_copied_before_it_is_written():
    tensor = torch.zeros(1000)
    head, data = b"".join(encode(tensor)[:2]), encode(tensor)[2]
    assert len(head) < 200 and torch.frombuffer(data, dtype=torch.float32).data_ptr() == tensor.data_ptr()


@dataclasses.dataclass
class Foreign:
    number: int


LIVE = {
    "function": lambda: None,
    "generator": (x for x in "ab"),
    "object": object(),
    "foreign": Foreign(1),
    "error": ValueError("no"),
}


@pytest.mark.parametrize("value", LIVE.values(), ids=LIVE)
def test_what_is_no_plain_data_is_refused_with_its_place(value):
    with pytest.raises(TypeError, match=r"value\[0\]\['deep'\] cannot go to another process"):
        encode([{"deep": value}])


def test_a_number_without_bounds_is_refused():
    with pytest.raises(TypeError, match="cannot go to another process"):
        encode([{"deep": 2**64}, (2**64,)])


@pytest.mark.parametrize("name", ["os:system", "lullm.errors:LullmError", "lullm.executor.remote.codec:encode"])
def test_bytes_build_only_records_of_lullm(name):
    code = next(c for c in range(10) if _is_record(c))
    inner = msgspec.msgpack.encode([name, {}])
    head = msgspec.msgpack.encode(msgspec.msgpack.Ext(code, inner))
    with pytest.raises(ValueError, match="is no (class|record) of lullm"):
        decode(memoryview(len(head).to_bytes(8, "little") + head))


def _is_record(code):
    found = []
    head = bytes(encode(UsedBlocks([], []))[1]).rstrip(b"\0")
    msgspec.msgpack.Decoder(ext_hook=lambda code, data: found.append(code)).decode(head)
    return found == [code]


def test_damaged_bytes_are_said_to_be():
    with pytest.raises(ValueError, match="of another version, or a damaged one"):
        decode(memoryview((4).to_bytes(8, "little") + b"\xc1\xc1\xc1\xc1"))


def test_a_tensor_in_bytes_is_a_copy_that_can_be_written_to():
    """torch warned on stderr of every update of weights, and would have written to the bytes."""
    message = b"".join(bytes(part) for part in encode([torch.ones(4)]))
    before = bytes(bytearray(message))
    [tensor] = decode(memoryview(message))
    tensor.zero_()
    assert message == before
