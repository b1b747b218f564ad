"""A fault at every step of a sleep and of a wake-up, one after the other: the engine is awake or asleep, never half.

Each kind stands for one thing that a system refuses: memory, a file, a write, a read, a thread. The n-th such call
fails, for every n until none is left. Then the engine must be as it was, and in the end its requests have the very
tokens of a run without sleep.
"""

import ctypes
import errno
import os
import tempfile
import threading
from contextlib import contextmanager

import pytest
import torch
from kit.engine.parts import arenas_of, store_of
from kit.engine.prompts import random_prompts

from lullm import LLM, SamplingParams, StructuredOutputsParams
from lullm.errors import SleepError, WakeUpError
from lullm.machine import pages
from lullm.machine.memory import resident_bytes_within
from lullm.weights.reading import source

OPTIONS = {"dtype": "float32", "max_model_len": 128, "enable_sleep_mode": True, "num_gpu_blocks_override": 64,
           "max_num_batched_tokens": 40, "max_num_seqs": 16, "enable_chunked_prefill": True}  # fmt: skip
PROMPTS = [*random_prompts(4, 24), random_prompts(1, 100)[0]]
"""196 tokens, of which four steps compute 160 at most: the last prompt is not through when the engine sleeps."""
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, n=3, max_tokens=20, ignore_eos=True),
    SamplingParams(n=2, beam_width=2, max_tokens=12, ignore_eos=True),
    SamplingParams(
        temperature=1.0,
        seed=5,
        max_tokens=16,
        structured_outputs=StructuredOutputsParams(regex="[a-f]{4}(-[0-9]{3}){4}"),
    ),
    SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
]
NO_MEMORY = RuntimeError, "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes"
CALLS = {
    "write": (os, "pwrite", (OSError, errno.ENOSPC, "No space left on device")),
    "read": (os, "preadv", (OSError, errno.EIO, "Input/output error")),
    "file": (tempfile, "TemporaryFile", (OSError, errno.EMFILE, "Too many open files")),
    "thread": (threading.Thread, "start", (RuntimeError, "can't start new thread")),
    "tensor": (torch, "tensor", NO_MEMORY),
    "gather": (torch, "index_select", NO_MEMORY),
    "scatter": (torch.Tensor, "index_copy_", NO_MEMORY),
    "checkpoint": (source, "safe_open", (OSError, errno.EIO, "Input/output error")),
}
"""What is called, and what it raises: the words are those of Python and torch."""
KINDS = [*CALLS, "mmap", "madvise"]


class _Libc:
    """The C library, of which one function fails when `due` says so."""

    def __init__(self, refused, due):
        self._real, self._refused, self._due = pages._libc, refused, due

    def __getattr__(self, name):
        return self._fail if name == self._refused else getattr(self._real, name)

    def _fail(self, *args):
        is_advice = self._refused == "madvise" and args[2] != 4  # MADV_DONTNEED; a refusal of the others is no fault
        if is_advice or not self._due():
            return getattr(self._real, self._refused)(*args)
        ctypes.set_errno(errno.ENOMEM)
        return pages._MAP_FAILED if self._refused == "mmap" else -1


@contextmanager
def fault(kind, number):
    """The `number`-th call of a kind fails, from 0 on. Gives a list that stays empty if there was none."""
    count, hits = [0], []

    def due():
        count[0] += 1
        hits.extend([kind] * (count[0] == number + 1))
        return count[0] == number + 1

    with pytest.MonkeyPatch.context() as patch:
        if kind in CALLS:
            owner, name, (error, *words) = CALLS[kind]
            real = getattr(owner, name)

            def call(*args, **kwargs):
                if due():
                    raise error(*words)
                return real(*args, **kwargs)

            patch.setattr(owner, name, call)
        else:
            patch.setattr(pages, "_libc", _Libc(kind, due))
        yield hits


class Story:
    """The requests of one engine, and a sleep and a wake-up in the middle of each round of them."""

    def __init__(self, llm):
        self._llm = llm
        self.engine = llm.llm_engine
        self._num = 0

    def begin(self):
        self.engine.wake_up()
        self._llm.llm_engine.abort_request([*self.engine._scheduler.unfinished_ids])  # of a case that failed
        while self.engine.has_unfinished_requests():
            self.engine.step()
        self._llm.reset_prefix_cache()
        self._num += 1
        for number, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
            self.engine.add_request(f"{self._num}-{number}", prompt, params)
        for _ in range(4):
            assert not any(output.finished for output in self.engine.step())

    def end(self):
        ended = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished:
                    ended[output.request_id] = [c.token_ids for c in output.outputs]
        return [ended[f"{self._num}-{number}"] for number in range(len(PROMPTS))]

    def check(self, keeps_memory=False):
        """The state that the engine says is that of its memory."""
        asleep = set(self.engine.sleeping_tags)
        assert store_of(self._llm).is_resident == ("weights" not in asleep)
        for tag, arena in arenas_of(self._llm).items():
            resident = resident_bytes_within(arena.base_address, arena.capacity_bytes)
            if ("weights" if tag == "weights" else "kv_cache") in asleep:
                assert keeps_memory or resident == 0, f"{tag} sleeps and has {resident} bytes"
            elif tag == "weights":
                assert resident > 0


@pytest.fixture(scope="module")
def story(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        story = Story(llm)
        story.begin()
        story.expected = story.end()
        yield story


@pytest.mark.parametrize("backup", ["ram", "disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_in_a_sleep(story, kind, backup):
    number, hits = 0, [kind]
    while hits:
        story.begin()
        with fault(kind, number) as hits:
            try:
                story.engine.sleep(level=1, backup=backup, mode="keep")
            except SleepError:
                assert hits and story.engine.sleeping_tags == (("weights", "kv_cache") if kind == "madvise" else ())
        story.check(keeps_memory=kind == "madvise")  # which the system would not take back
        story.engine.wake_up()
        story.check()
        assert story.end() == story.expected, f"{kind} {number}"
        number += 1


@pytest.mark.parametrize("backup", ["ram", "disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_in_a_wake_up(story, kind, backup):
    number, hits = 0, [kind]
    while hits:
        story.begin()
        story.engine.sleep(level=1, backup=backup, mode="keep")
        with fault(kind, number) as hits:
            try:
                story.engine.wake_up()
            except WakeUpError:
                assert hits and story.engine.sleeping_tags
        story.check()
        story.engine.wake_up()
        story.check()
        assert story.end() == story.expected, f"{kind} {number}"
        number += 1
