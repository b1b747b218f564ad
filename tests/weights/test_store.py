"""WeightStore: versions, what counts as modified, and packing of nothing but what is touched."""

import dataclasses

import pytest
import torch

from lullm.arena.backup import Backup
from lullm.arena.chunk_store import CHUNK_BYTES, MemoryStore
from lullm.arena.host import HostArena
from lullm.errors import EngineAsleepError, ModelLoadError, WakeUpError
from lullm.ops.selection import REFERENCE_OPS
from lullm.weights.packing import pack_weights
from lullm.weights.rule import trainer_name
from lullm.weights.store import WeightStore
from lullm.weights.target import WeightTargets

QKV = "model.layers.0.self_attn.qkv_proj.weight"
AT_ONCE = lambda tensor: tensor  # noqa: E731  memory is there
Q, K, V = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv")


class Recorder:
    """Ops whose packed order is the rows upside down, and the calls that were made."""

    def __init__(self):
        self.calls = []
        self.ops = dataclasses.replace(
            REFERENCE_OPS, pack_weight_=lambda w: self.turn("pack", w), unpack_weight_=lambda w: self.turn("unpack", w)
        )

    def turn(self, what, weight):
        self.calls.append((what, weight.data_ptr()))
        weight.copy_(weight.flip(0))


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def source(checkpoint):
    return dict(checkpoint)


@pytest.fixture
def model(make_model):
    return make_model()


@pytest.fixture
def store(model, recorder, source):
    def fill(checkpoint):
        targets = WeightTargets(model, recorder.ops)
        with torch.no_grad():
            for name, tensor in source.items():
                targets.find(name, tensor).rows.write(tensor)
            pack_weights(model, recorder.ops)

    store = WeightStore(model, recorder.ops, fill, None, verify=True)
    store.load()
    recorder.calls.clear()
    return store


def plain(model, name):
    """A matrix as the checkpoint has it."""
    return dict(model.named_parameters())[name].flip(0)


def test_only_what_is_touched_is_unpacked_and_packed_once(store, model, recorder, checkpoint):
    parameters = dict(model.named_parameters())
    before = {name: p.clone() for name, p in parameters.items()}
    norm = "model.layers.1.input_layernorm.weight"
    pushed = [(Q, torch.ones(32, 16)), (K, torch.full((16, 16), 2.0)), (norm, torch.full((16,), 3.0)), (V, -V_of())]
    assert store.update(pushed) == [Q, K, norm, V]
    address = parameters[QKV].data_ptr()
    assert recorder.calls == [(what, address) for what in ("unpack", "pack", "unpack", "pack")]
    assert torch.equal(plain(model, QKV), torch.cat([tensor for name, tensor in pushed if name != norm]))
    assert torch.equal(parameters[norm], pushed[2][1])
    for name, parameter in parameters.items():
        assert name in (QKV, norm) or torch.equal(parameter, before[name]), name
    assert store.modified == {QKV, norm}
    assert store.version == 1 and store.has_news


def V_of():
    return torch.arange(256.0).view(16, 16)


def test_a_failure_leaves_a_packed_matrix(store, model, recorder, checkpoint):
    with pytest.raises(ModelLoadError, match="1 tensors before it .*q_proj"):
        store.update([(Q, torch.ones(32, 16)), (K, torch.ones(3))])
    assert [what for what, _ in recorder.calls] == ["unpack", "pack"]
    rows = torch.cat([torch.ones(32, 16), checkpoint[K], checkpoint[V]])
    assert torch.equal(plain(model, QKV), rows)
    with pytest.raises(ModelLoadError, match="No weight"):
        store.update([("x", torch.ones(3))])
    assert store.version == 1, "the second changed nothing"


def test_an_empty_update_is_no_new_version(store):
    assert store.update([]) == [] and store.version == 0 and not store.has_news


def test_restoring(store, model, source):
    store.update([(Q, torch.ones(32, 16))])
    before = {name: p.clone() for name, p in model.named_parameters()}
    saved = frozenset(store.modified)
    backup = Backup(MemoryStore(HostArena("backup", CHUNK_BYTES)), "weights")
    backup.save(store.parameters(saved))

    def forget():
        store.is_resident = False
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()

    forget()
    with pytest.raises(EngineAsleepError):
        store.update([(Q, torch.ones(32, 16))])
    settled = []
    store.restore(
        saved, backup, lambda: settled.append(dict(model.named_parameters())["model.norm.weight"].clone()), AT_ONCE
    )
    assert torch.equal(settled[0], before["model.norm.weight"]), "when the checkpoint is read"
    store.is_resident = True
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert (store.version, store.modified, store.has_news) == (1, saved, False)
    forget()
    source["model.norm.weight"] = source["model.norm.weight"] + 1
    with pytest.raises(WakeUpError, match="model.norm.weight has another checksum"):
        store.restore(saved, backup, settled.clear, AT_ONCE)
    store.load()
    assert (store.version, store.modified) == (2, set())
    forget()
    store.restore(frozenset(), None, settled.clear, AT_ONCE)
    assert torch.equal(dict(model.named_parameters())["model.norm.weight"], source["model.norm.weight"])
    source[K] = source[K] * 2
    with pytest.raises(WakeUpError):
        store.restore(frozenset(), None, settled.clear, AT_ONCE)


@pytest.mark.parametrize(
    ("pushed", "name"),
    [
        ("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight", Q),
        ("module.model.layers.0.self_attn.q_proj.weight", Q),
        ("module.base_model.model.lm_head.modules_to_save.default.weight", "lm_head.weight"),
        ("_orig_mod.model.layers.0._checkpoint_wrapped_module.self_attn.q_proj.weight", Q),
        ("_fsdp_wrapped_module.model._fsdp_wrapped_module.norm.weight", "model.norm.weight"),
        ("model.norm.weight", "model.norm.weight"),
        ("model.my_module.weight", "model.my_module.weight"),
    ],
)
def test_names_of_trainers(pushed, name):
    assert trainer_name(pushed) == name
