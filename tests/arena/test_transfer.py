"""Transfers: every byte, the overlap that two buffers give, one buffer as large as all, and faults on the way."""

import pytest
import torch

from lullm.arena.arena import Arena
from lullm.arena.host import HOST, HostArena
from lullm.arena.transfer import copy_in, copy_out
from lullm.errors import LullmError
from lullm.units import KIB, MIB


def random_bytes(num_bytes):
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8)


def buffers(num, num_bytes):
    return [torch.zeros(num_bytes, dtype=torch.uint8) for _ in range(num)]


@pytest.fixture(params=["cuda", "rocm", "npu", "host"])
def build(request):
    """A function, so that nothing but the test holds the back end that it builds."""
    if request.param == "host":
        return lambda: HOST
    fake = request.getfixturevalue("fake")
    return lambda: fake.build(request.param, chunk_bytes=2 * MIB)


@pytest.mark.parametrize("num_buffers", [1, 2, 3])
def test_out_and_in_again(build, num_buffers):
    arena = Arena(build(), "weights", 6 * MIB)
    tensor = arena.empty((5 * MIB + 100,), torch.uint8)
    content = random_bytes(tensor.numel())
    tensor.copy_(content)
    saved = torch.zeros_like(content)

    def take(offset, piece):
        saved[offset : offset + len(piece)] = piece

    def give(offset, piece):
        piece.copy_(saved[offset : offset + len(piece)])

    staging = buffers(num_buffers, MIB + 3)
    copy_out(arena, staging, take)
    assert torch.equal(saved, content)
    arena.release()
    arena.map()
    assert not tensor.any()
    copy_in(arena, staging, give)
    assert torch.equal(tensor, content)


def test_buffers_as_large_as_the_arena_keep_all_of_it(build):
    arena = Arena(build(), "weights", 4 * MIB)
    tensor = arena.empty((3 * MIB + 5,), torch.uint8)
    content = random_bytes(tensor.numel())
    tensor.copy_(content)
    backup = torch.zeros(arena.used_bytes, dtype=torch.uint8)
    seen = []
    copy_out(arena, backup.split(MIB), lambda offset, piece: seen.append((offset, len(piece))))
    assert seen == [(0, MIB), (MIB, MIB), (2 * MIB, MIB), (3 * MIB, 5)]
    assert torch.equal(backup, content)
    tensor.zero_()
    copy_in(arena, backup.split(MIB), lambda offset, piece: None)
    assert torch.equal(tensor, content)


def test_spans(build):
    arena = Arena(build(), "kv_cache", 6 * MIB)
    tensor = arena.empty((6 * MIB,), torch.uint8)
    tensor.copy_(random_bytes(6 * MIB))
    arena.release(range(arena.num_chunks)[1:2])  # on a device the middle is gone: only what is asked for is touched
    spans = [(5 * MIB, 100 * KIB), (7, 0), (64, 130 * KIB)]
    saved = {}
    copy_out(arena, buffers(2, 100 * KIB), lambda offset, piece: saved.update({offset: piece.clone()}), spans)
    assert [(offset, len(piece)) for offset, piece in saved.items()] == [
        (5 * MIB, 100 * KIB), (64, 100 * KIB), (64 + 100 * KIB, 30 * KIB),
    ]  # fmt: skip
    assert all(torch.equal(tensor[o : o + len(piece)], piece) for o, piece in saved.items())


def test_one_piece_flies_while_the_other_is_worked_on(fake):
    arena = Arena(fake.build("cuda"), "weights", 2 * MIB)
    arena.empty((5 * KIB,), torch.uint8)
    events = []
    short = {"cuMemcpyDtoHAsync_v2": "copy", "cuMemcpyHtoDAsync_v2": "copy", "cuEventSynchronize": "wait",
             "cuStreamSynchronize": "drain"}  # fmt: skip

    def note(word):
        def record(offset, piece):
            events.extend(short[name] for name in fake.names() if name in short)
            fake.reset()
            events.append(f"{word} {offset // KIB}")

        return record

    fake.reset()
    copy_out(arena, buffers(2, 2 * KIB), note("take"))
    note("end")(0, None)
    assert events == ["copy", "copy", "wait", "take 0", "copy", "wait", "take 2", "wait", "take 4", "drain", "end 0"]
    events.clear()
    copy_in(arena, buffers(2, 2 * KIB), note("give"))
    note("end")(0, None)
    assert events == ["give 0", "copy", "give 2", "copy", "wait", "give 4", "copy", "wait", "wait", "drain", "end 0"]


def test_calls_of_one_piece(fake):
    arena = Arena(fake.build("npu"), "weights", 1)
    arena.empty((100,), torch.uint8)
    [buffer] = buffers(1, KIB)
    for function, kind, there in ((copy_out, 2, False), (copy_in, 1, True)):
        fake.reset()
        function(arena, [buffer], lambda offset, piece: None)
        here, far = arena.base_address, buffer.data_ptr()
        target, source = (here, far) if there else (far, here)
        assert fake.calls("aclrtSetDevice") == [
            ("aclrtCreateStream",), ("aclrtMemcpyAsync", target, 100, source, 100, kind, 1), ("aclrtCreateEvent",),
            ("aclrtRecordEvent", 1, 1), ("aclrtSynchronizeEvent", 1), ("aclrtDestroyEvent", 1),
            ("aclrtSynchronizeStream", 1), ("aclrtDestroyStream", 1),
        ]  # fmt: skip


@pytest.mark.parametrize("function", [copy_out, copy_in])
def test_an_error_on_the_host_ends_it_after_what_flies_has_landed(fake, function):
    arena = Arena(fake.build("cuda"), "weights", 1)
    arena.empty((5 * KIB,), torch.uint8)

    def full(offset, piece):
        if offset:
            raise OSError("disk full")

    fake.reset()
    with pytest.raises(OSError, match="disk full"):
        function(arena, buffers(2, KIB), full)
    assert "cuStreamSynchronize" in fake.names() and fake.names()[-1] == "cuStreamDestroy_v2"
    assert fake.counts()["streams"] == fake.counts()["events"] == 0


@pytest.mark.parametrize(
    "step", ["cuStreamCreate", "cuMemcpyDtoHAsync_v2", "cuEventCreate", "cuEventRecord", "cuEventSynchronize"]
)
def test_a_driver_that_fails_on_the_way(fake, step):
    arena = Arena(fake.build("cuda"), "weights", 1)
    arena.empty((5 * KIB,), torch.uint8)
    fake.fail(step, 1, 700)
    with pytest.raises(LullmError, match=f"{step} failed with 700"):
        copy_out(arena, buffers(2, KIB), lambda offset, piece: None)
    assert fake.counts()["streams"] == fake.counts()["events"] == 0


def test_what_is_refused(fake):
    arena = Arena(fake.build("rocm"), "weights", 1)
    arena.empty((100,), torch.uint8)
    good = buffers(2, KIB)
    for bad in ([], [torch.empty(0, dtype=torch.uint8)]):
        with pytest.raises(LullmError, match="at least one buffer"):
            copy_out(arena, bad, print)
    for bad in (torch.empty(4), torch.empty((2, 2), dtype=torch.uint8), good[0][::2], good[0].to("meta")):
        with pytest.raises(LullmError, match="flat contiguous CPU tensors of uint8"):
            copy_in(arena, [bad], print)
    for span in ((-1, 5), (0, 3 * MIB), (5, -2)):
        with pytest.raises(LullmError, match="not in the arena 'weights'"):
            copy_out(arena, good, print, [span])
    arena.release()
    with pytest.raises(LullmError, match="'weights' is released"):
        copy_out(arena, good, print)
    arena.close()
    with pytest.raises(LullmError, match="'weights' is closed"):
        copy_in(arena, good, print)


def test_a_host_arena_in_use_only(tmp_path):
    """The way a file is written: nothing beyond what was handed out."""
    arena = HostArena("weights", 4 * MIB)
    arena.empty((1000,), torch.float32).fill_(2.0)
    path = tmp_path / "backup"
    with path.open("wb") as file:
        copy_out(arena, buffers(2, KIB), lambda offset, piece: file.write(piece.numpy()))
    assert path.stat().st_size == 4000
