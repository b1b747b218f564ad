"""Hibernation: requests go on in another engine with the very next token; nothing is lost if something is wrong."""

import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
from types import SimpleNamespace

import msgspec
import pytest
import torch
from kit.engine.parts import executor_of, kv_scales_of, worker_of
from kit.engine.prompts import random_prompts
from kit.folder.checkpoint import write_checkpoint, write_tokenizer
from kit.model.families import CASES as CASES_OF_FAMILIES
from kit.model.golden import SIZES, random_model
from safetensors.torch import load_file

from lullm import LLM, PoolingParams, SamplingParams, StructuredOutputsParams
from lullm.engine.hibernation.folder import checksum_of
from lullm.engine.hibernation.queue import layout
from lullm.errors import (
    EngineAsleepError,
    HibernatedError,
    HibernationError,
    UnsupportedError,
)
from lullm.types.sampling_params import OutputKind

OPTIONS = {
    "dtype": "float32",
    "max_model_len": 128,
    "block_size": 8,
    "num_gpu_blocks_override": 160,
    "swap_space": 0.01,
}
ENGINE_SIZES = SIZES | {"vocab_size": 320, "max_position_embeddings": 256}
PROMPTS = random_prompts(10, 60)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, max_tokens=30, logprobs=2, ignore_eos=True)
PARAMS = [
    GREEDY,
    DRAWN.replace(n=3, seed=3),
    DRAWN,  # its seed is the engine's
    DRAWN.replace(n=1, best_of=2, seed=5, logprobs=None),
    GREEDY.replace(prompt_logprobs=1),
    DRAWN.replace(seed=7, presence_penalty=0.5, repetition_penalty=1.2, logit_bias={7: 4.0}, min_tokens=4),
    DRAWN.replace(seed=9, structured_outputs=StructuredOutputsParams(regex="[a-f0-9]{20,40}"), ignore_eos=False),
    SamplingParams(n=2, beam_width=3, max_tokens=20),
    DRAWN.replace(seed=11, stop=["e", "qu"], include_stop_str_in_output=True, n=2, stop_token_ids=[5]),
    DRAWN.replace(seed=13, output_kind=OutputKind.DELTA, bad_words=["the"]),
]


def add_all(engine, prompts=PROMPTS, params=PARAMS):
    for number, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(str(number), prompt, one)


class Run:
    """Drives engines, and notes what they answer: a request's outputs, deltas joined, and the tokens computed."""

    def __init__(self):
        self.found, self.num_computed = {}, 0

    def count(self, engine):
        launch = executor_of(engine).launch_model

        def counted(plan):
            self.num_computed += plan.num_tokens
            return launch(plan)

        executor_of(engine).launch_model = counted

    def step(self, engine):
        for output in engine.step():
            if not hasattr(output.outputs, "data"):
                self._take(output)
            elif output.finished:
                self.found[output.request_id] = output.outputs.data

    def _take(self, output):
        is_delta = PARAMS[int(output.request_id)].output_kind is OutputKind.DELTA
        if is_delta and output.request_id in self.found:
            for whole, part in zip(self.found[output.request_id].outputs, output.outputs, strict=True):
                whole.absorb(part)
        elif is_delta or output.finished:
            self.found[output.request_id] = output

    def answers(self):
        return {request_id: answer(output) for request_id, output in self.found.items()}


def answer(output):
    if isinstance(output, list):
        return output
    completions = [
        (c.token_ids, c.text, c.finish_reason, c.stop_reason, c.logprobs, c.cumulative_logprob) for c in output.outputs
    ]
    return output.prompt, output.prompt_token_ids, completions, output.prompt_logprobs


def tokens_of(one):
    """Of each completion of an answer."""
    return [token_ids for token_ids, *_ in one[2]]


def run_through(open_engine, folder, every, add=add_all):
    """All requests, in a new engine after every so many steps: (answers, tokens computed, moves)."""
    run, num_moves = Run(), 0
    llm = open_engine()
    run.count(llm.llm_engine)
    add(llm.llm_engine)
    for step in range(1, 2000):
        if not llm.llm_engine.has_unfinished_requests():
            break
        run.step(llm.llm_engine)
        if step % every == 0:
            llm.llm_engine.hibernate(folder)
            llm = open_engine()
            run.count(llm.llm_engine)
            llm.llm_engine.resume(folder)
            num_moves += 1
    assert llm.llm_engine.stats().num_used_blocks == 0
    llm.llm_engine._block_space.check_conservation()
    llm.shutdown()
    return run.answers(), run.num_computed, num_moves


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "h"


CASES = {
    "plain": {},
    "small steps, no prefix cache": {"enable_prefix_caching": False, "max_num_batched_tokens": 16, "max_num_seqs": 8},
    "swapped out": {"num_gpu_blocks_override": 26, "preemption_mode": "swap"},
    "guesses": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    "ahead": {"async_scheduling": True},
    "int8 cache": {"kv_cache_dtype": "int8"},
    "fp8 cache": {"kv_cache_dtype": "fp8", "calculate_kv_scales": True},
}


@pytest.mark.parametrize("name", CASES)
def test_requests_go_on_with_the_next_token(opener, folder, name):
    options = CASES[name]
    expected, num_computed, _ = run_through(lambda: opener(**options), folder, 10**6)
    found, num, num_moves = run_through(lambda: opener(**options), folder, 11)
    assert num_moves > 1 and len(found) == len(PROMPTS)
    assert found == expected
    if name not in ("guesses", "swapped out"):  # which guess, and which victim, may differ
        assert num == num_computed, "and nothing is computed twice"


def test_another_process_goes_on(opener, qwen3_folder, folder):
    """The one that began is gone, killed right behind the hibernation."""
    expected = run_through(opener, folder, 10**6)[0]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "7"}
    child = [sys.executable, "-c", CHILD, str(qwen3_folder), str(folder)]
    done = subprocess.run(child, env=env, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    llm, run = opener(), Run()
    run.count(llm.llm_engine)
    report = llm.llm_engine.resume(folder)
    assert set(report.request_ids) == {str(number) for number in range(len(PROMPTS))} and not report.num_recomputed
    while llm.llm_engine.has_unfinished_requests():
        run.step(llm.llm_engine)
    assert {request_id: found for request_id, found in run.answers().items() if request_id != "9"} == {
        request_id: found for request_id, found in expected.items() if request_id != "9"
    }, "all but the deltas, whose first ones went to the process that is gone"
    longest = max(len(prompt) for prompt in PROMPTS)
    assert run.num_computed < sum(30 * one.num_sequences for one in PARAMS) + longest, "no prompt is computed again"


CHILD = """
import os, signal, sys
from engine.test_hibernation import OPTIONS, Run, add_all
from lullm import LLM
llm, run = LLM(sys.argv[1], **OPTIONS), Run()
add_all(llm.llm_engine)
for _ in range(3):
    run.step(llm.llm_engine)
llm.hibernate(sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("family", ["windows", "Qwen3_5"])
def test_windows_and_states(opener, mixed_folder, tmp_path, folder, family):
    model = mixed_folder
    if family != "windows":
        model = tmp_path / "model"
        random_model(family, ENGINE_SIZES | CASES_OF_FAMILIES[family].engine).save_pretrained(model)
        write_tokenizer(model)
    options = {"model": model, "num_gpu_blocks_override": 600}
    expected, num_computed, _ = run_through(lambda: opener(**options), folder, 10**6)
    found, num, num_moves = run_through(lambda: opener(**options), folder, 13)
    assert num_moves > 1 and found == expected and num == num_computed


def test_several_workers(opener, folder):
    options = {"tensor_parallel_size": 2}
    expected, num_computed, _ = run_through(opener, folder, 10**6)
    found, num, num_moves = run_through(lambda: opener(**options), folder, 25)
    assert [tokens_of(each) for each in found.values()] == [tokens_of(expected[each]) for each in found]
    assert (num, num_moves) == (num_computed, 1)
    assert sorted(os.listdir(folder)) == ["hibernation.json", "kv-0.bin", "kv-1.bin", "queue.msgpack"]
    with pytest.raises(HibernationError, match="tensor_parallel_size is 1, and was 2"):
        opener().resume(folder)


def test_prompts_that_are_pooled(opener, folder, tmp_path):
    model = write_checkpoint(tmp_path / "model", "qwen3")

    def add(engine):
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(str(number), prompt, PoolingParams())

    options = {"model": model, "runner": "pooling", "max_num_batched_tokens": 24, "max_num_seqs": 8}
    expected = run_through(lambda: opener(**options), folder, 10**6, add)
    found = run_through(lambda: opener(**options), folder, 4, add)
    assert found[0] == expected[0] and len(found[0]) == len(PROMPTS) and found[2] > 1


def test_cached_prefixes_come_back(opener, folder):
    llm = opener()
    prompt = list(range(3, 103))
    [first] = llm.generate(prompt, GREEDY, use_tqdm=False)
    forecast, report = llm.explain_hibernate(), llm.hibernate(folder)
    assert forecast.num_requests == 0 and forecast.num_blocks == report.num_blocks == 15
    assert forecast.kv_bytes == report.kv_bytes == 15 * worker_of(llm).pools.block_bytes
    assert forecast.written_bytes == report.written_bytes
    on_disk = sum(path.stat().st_size for path in folder.iterdir())
    assert report.written_bytes <= on_disk < report.written_bytes + 16384
    other = opener()
    resumed = other.resume(folder)
    assert (resumed.request_ids, resumed.num_blocks, resumed.restored_bytes) == ((), 15, report.kv_bytes)
    [second] = other.generate(prompt, GREEDY, use_tqdm=False)
    assert second.num_cached_tokens == 96 and second.outputs[0].token_ids == first.outputs[0].token_ids


def test_seeds_are_drawn_on(opener, folder):
    expected = [output.outputs[0].token_ids for output in opener().generate(["a"] * 2, DRAWN, use_tqdm=False)]
    llm = opener()
    [first] = llm.generate("a", DRAWN, use_tqdm=False)
    llm.hibernate(folder)
    other = opener()
    other.resume(folder)
    [second] = other.generate("a", DRAWN, use_tqdm=False)
    assert [first.outputs[0].token_ids, second.outputs[0].token_ids] == expected and expected[0] != expected[1]


def test_times_of_the_hibernation_do_not_count(opener, folder, monkeypatch):
    llm = opener()
    llm.enqueue("a", GREEDY)
    llm.hibernate(folder)
    other = opener()
    monkeypatch.setattr("lullm.engine.hibernation.hibernation.time.monotonic", lambda: 1e6)
    other.resume(folder)
    [group] = other.llm_engine._scheduler.waiting
    assert 1e6 - 60 < group.metrics.arrival_time <= 1e6 and group.request.arrival_time == group.metrics.arrival_time


def test_a_smaller_cache_computes_again_what_has_no_room(opener, folder):
    expected = run_through(opener, folder, 10**6)[0]
    llm, run = opener(), Run()
    add_all(llm.llm_engine)
    for _ in range(12):
        run.step(llm.llm_engine)
    llm.hibernate(folder)
    other = opener(num_gpu_blocks_override=30, swap_space=0, max_num_seqs=8)
    report = other.llm_engine.resume(folder)
    assert 0 < report.num_recomputed < len(PROMPTS) and report.num_blocks == 30
    while other.llm_engine.has_unfinished_requests():
        run.step(other.llm_engine)
    assert run.answers() == expected


def test_what_needs_more_than_the_whole_cache_is_refused(opener, folder):
    llm = opener()
    llm.enqueue(list(range(3, 63)), GREEDY.replace(n=12))
    llm.hibernate(folder)
    for options, words in (
        ({"num_gpu_blocks_override": 16}, "needs 19 KV blocks, and this engine has 16, fewer than the 160 there"),
        ({"max_num_seqs": 4}, "12 sequences, more than max_num_seqs=4 here; raise it"),
    ):
        other = opener(**options)
        with pytest.raises(HibernationError, match=words):
            other.resume(folder)
        assert not other.llm_engine.has_unfinished_requests()


# -- what is refused, and what stays as it was -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(qwen3_folder, tmp_path_factory):
    """A hibernation of running requests."""
    folder, run = tmp_path_factory.mktemp("original") / "h", Run()
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        add_all(llm.llm_engine)
        for _ in range(9):
            run.step(llm.llm_engine)
        llm.hibernate(folder)
    return folder


@pytest.fixture
def written(original, folder):
    """A copy of it in `folder`, and the bytes of its files."""
    shutil.copytree(original, folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_only_its_owner_may_read_it(original):
    assert stat.S_IMODE(original.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in original.iterdir()} == {0o600}
    assert os.listdir(original.parent) == ["h"]


def test_damage_is_noticed_and_changes_nothing(opener, written, folder):
    rng, llm = random.Random(1), opener()
    [before] = llm.generate("a", GREEDY, use_tqdm=False)
    for number in range(60):
        name = rng.choice(list(written))
        data = bytearray(written[name])
        if number % 3:
            # what fills the disk's last block is nobody's
            data[rng.randrange(len(data) - (4096 if name.startswith("kv") else 0))] ^= 1 << rng.randrange(8)
        else:
            del data[rng.randrange(len(data)) :]
        (folder / name).write_bytes(data)
        with pytest.raises(HibernationError) as error:
            llm.resume(folder)
        assert str(folder) in str(error.value)
        assert (folder / name).read_bytes() == data
        (folder / name).write_bytes(written[name])
        assert not llm.llm_engine.has_unfinished_requests() and llm.llm_engine.stats().num_used_blocks == 0
    for name in written:
        (folder / name).rename(folder / "away")
        with pytest.raises(HibernationError, match=name):
            llm.resume(folder)
        os.mkfifo(folder / name)  # its open waited for a writer
        with pytest.raises(HibernationError, match=f"{name} cannot be read: it is not a regular file"):
            llm.resume(folder)
        (folder / "away").replace(folder / name)
    [after] = llm.generate("a", GREEDY, use_tqdm=False)
    assert after.outputs[0].token_ids == before.outputs[0].token_ids
    assert len(llm.resume(folder).request_ids) == len(PROMPTS) - num_ended(written)


def num_ended(written):
    return len(PROMPTS) - json.loads(written["hibernation.json"])["manifest"]["num_requests"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "bfloat16"}, "dtype is bfloat16, and was float32; kv_cache_dtype is bfloat16"),
        ({"block_size": 16}, "block_size is 16, and was 8"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype is int8, and was float32"),
        ({"max_model_len": 64}, "max_model_len is 64, and was 128"),
        ({"quantization": "int8"}, "quantization is int8, and was none"),
        ({"logprobs_mode": "processed_logprobs"}, "logprobs_mode is processed_logprobs"),
    ],
)
def test_another_engine_is_refused(opener, written, folder, options, words):
    llm = opener(**options)
    with pytest.raises(HibernationError, match=words):
        llm.resume(folder)
    assert len(llm.generate("a", GREEDY, use_tqdm=False)) == 1


def test_other_weights_are_refused(opener, qwen3_folder, written, folder, tmp_path):
    other = write_checkpoint(tmp_path / "other", "qwen3", initializer_range=0.25)
    llm = opener(model=other)
    with pytest.raises(HibernationError, match=f"the weights are others than those of {qwen3_folder} there; build"):
        llm.resume(folder)
    llm.update_weights(load_file(qwen3_folder / "model.safetensors").items())
    assert llm.resume(folder).num_recomputed == 0, "the same weights, pushed"
    llm.hibernate(folder)
    with pytest.raises(HibernationError, match="which had been updated: push the same weights first"):
        opener(model=other).resume(folder)


def test_another_tokenizer_is_refused(opener, written, folder, monkeypatch):
    llm = opener()
    tokenizer = llm.llm_engine.tokenizer
    inner = tokenizer.token_bytes.inner
    monkeypatch.setattr(tokenizer.token_bytes, "inner", lambda token_id: inner(token_id)[:-1] + b"?")
    with pytest.raises(HibernationError, match="another text here"):
        llm.resume(folder)


def test_another_version_is_refused(opener, written, folder, monkeypatch):
    llm = opener()
    monkeypatch.setattr("lullm.engine.hibernation.hibernation.VERSION", "0.0.9")
    with pytest.raises(HibernationError, match=r"written by lullm \S+ in format \d .*; this is lullm 0.0.9"):
        llm.resume(folder)
    monkeypatch.undo()
    monkeypatch.setattr("lullm.engine.hibernation.folder.FORMAT", 99)
    with pytest.raises(HibernationError, match="in format .* reads format 99"):
        llm.resume(folder)
    monkeypatch.undo()
    # A version of development with the same number, whose requests have a field more.
    monkeypatch.setattr("lullm.engine.hibernation.hibernation.layout", lambda: "another")
    with pytest.raises(HibernationError, match="layout another.* resume it with the lullm that wrote it, or remove"):
        llm.resume(folder)


def test_the_layout_is_that_of_the_fields():
    def kind(doc, *fields):
        return msgspec.defstruct("Kind", fields, namespace={"__doc__": doc}, array_like=True)

    same = layout(kind("Some.", ("a", int))), layout(kind("Other.", ("a", int)))
    others = layout(kind("Some.", ("a", int), ("b", bool, False))), layout(kind("Some.", ("a", str)))
    assert len({*same, *others}) == 3 and same[0] == same[1]
    assert len(layout()) == 16


def test_a_full_disk_changes_nothing(opener, folder, monkeypatch):
    expected = run_through(opener, folder, 10**6)[0]
    llm, run = opener(), Run()
    add_all(llm.llm_engine)
    for _ in range(9):
        run.step(llm.llm_engine)

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("os.pwrite", "os.fsync", "os.rename"):
        with monkeypatch.context() as patch:
            patch.setattr(name, fail)
            with pytest.raises(HibernationError, match=r"cannot hibernate to .*: No space left.*the engine goes on"):
                llm.hibernate(folder)
        assert os.listdir(folder.parent) == []
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
        with pytest.raises(HibernationError, match=r"iB are needed, 10 B are free"):
            llm.hibernate(folder)
    while llm.llm_engine.has_unfinished_requests():
        run.step(llm.llm_engine)
    assert run.answers() == expected


def test_only_an_old_hibernation_is_replaced(opener, folder, tmp_path):
    llm = opener()
    folder.mkdir()
    (folder / "thesis.txt").write_text("x")
    for place in (folder, folder / "thesis.txt"):
        with pytest.raises(HibernationError, match="something else lies there"):
            llm.hibernate(place)
    with pytest.raises(HibernationError, match="there is no folder"):
        llm.hibernate(tmp_path / "a" / "b")
    for path in (None, 3, "/", b"\0"):
        with pytest.raises(HibernationError):
            llm.hibernate(path)
    (folder / "thesis.txt").unlink()
    llm.hibernate(folder)  # an empty folder
    other = opener()
    other.enqueue("a", GREEDY)
    (tmp_path / "link").symlink_to(folder)
    assert other.hibernate(tmp_path / "link").num_requests == 1
    assert opener().resume(folder).request_ids == ("0",)
    assert sorted(os.listdir(tmp_path)) == ["h", "link"]


def test_an_engine_that_cannot(opener, written, folder):
    llm = opener(enable_sleep_mode=True)
    llm.sleep(1)
    for call in (llm.hibernate, llm.resume):
        with pytest.raises(EngineAsleepError, match="wake_up"):
            call(folder)
    llm.wake_up()
    llm.llm_engine.add_request("x", "a", GREEDY)
    with pytest.raises(HibernationError, match="has 1 requests of its own"):
        llm.resume(folder)
    llm.llm_engine.abort_request("x")
    llm.sleep(0)
    llm.hibernate(folder)  # a pause releases nothing
    with pytest.raises(HibernatedError, match="resume"):
        llm.generate("a")
    with pytest.raises(HibernatedError):
        llm.hibernate(folder)


def test_workers_on_several_machines_are_refused(opener, folder):
    llm = opener()
    object.__setattr__(llm.llm_engine.config, "distributed_executor_backend", "ray")
    for call in (llm.hibernate, llm.resume, lambda _: llm.explain_hibernate()):
        with pytest.raises(UnsupportedError, match="'ray'"):
            call(folder)


def test_scales_of_an_fp8_cache_come_back(opener, folder):
    options = {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}
    llm, other = opener(**options), opener(**options)
    llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    scales = [each.k_scale.clone() for each in kv_scales_of(llm)]
    llm.hibernate(folder)
    other.resume(folder)
    found = [each.k_scale for each in kv_scales_of(other)]
    assert all(map(torch.equal, scales, found)) and not all(each.eq(1).all() for each in found)
    other.generate(PROMPTS[1], GREEDY, use_tqdm=False)
    assert all(map(torch.equal, scales, found)), "and are not measured again"


# -- LLM ---------------------------------------------------------------------------------------------------------------


def test_a_queue_goes_on_in_order(opener, folder):
    expected = [answer(output) for output in opener().generate(PROMPTS, PARAMS, use_tqdm=False)]
    llm = opener()
    llm.enqueue(PROMPTS[:6], PARAMS[:6])
    llm.hibernate(folder)
    other = opener()
    other.resume(folder)
    with pytest.raises(HibernationError, match="resume before the first enqueue"):
        other.resume(folder)
    ids = other.enqueue(PROMPTS[6:], PARAMS[6:])
    assert ids[0] == "6", "after those that came back"
    assert [answer(output) for output in other.wait_for_completion(use_tqdm=False)] == expected
    assert other.wait_for_completion(use_tqdm=False) == []


def test_a_running_call_stops_and_goes_on_elsewhere(opener, folder):
    """Outputs that are there already go along; other calls of the resuming object run what came back."""
    params = [one.replace(max_tokens=4) for one in PARAMS[:2]] + [one.replace(max_tokens=90) for one in PARAMS[2:4]]
    expected = [answer(output) for output in opener().generate(PROMPTS[:4], params, use_tqdm=False)]
    llm, reports, engine_step, num_steps = opener(), [], None, 0
    thread = threading.Thread(target=lambda: reports.append(llm.hibernate(folder)))
    engine_step = llm.llm_engine.step

    def step():
        nonlocal num_steps
        num_steps += 1
        if num_steps == 12:
            with pytest.raises(HibernationError, match="start a thread that calls it"):
                llm.hibernate(folder)
            thread.start()
            while not llm._calls:
                pass
        return engine_step()

    llm.llm_engine.step = step
    with pytest.raises(HibernatedError, match=r"the requests of this call are in .*wait_for_completion\(\)"):
        llm.generate(PROMPTS[:4], params, use_tqdm=False)
    thread.join()
    assert reports[0].num_requests == 4 and num_steps == 12
    other = opener()
    assert other.resume(folder).request_ids == ("0", "1", "2", "3")
    other.generate("b", GREEDY, use_tqdm=False)
    other.hibernate(folder)
    third = opener()
    third.resume(folder)
    assert [answer(output) for output in third.wait_for_completion(use_tqdm=False)] == expected


def test_a_call_that_fails_leaves_the_running_call_alone(opener, folder):
    llm, errors = opener(), []
    folder.write_text("something else")

    def hibernate():
        try:
            llm.hibernate(folder)
        except HibernationError as error:
            errors.append(error)

    thread, engine_step = threading.Thread(target=hibernate), llm.llm_engine.step

    def step():
        if not thread.ident:
            thread.start()
            while not llm._calls:
                pass
        return engine_step()

    llm.llm_engine.step = step
    outputs = llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)
    thread.join()
    assert len(outputs) == 2 and "something else lies there" in str(errors[0])


def test_replicas_are_refused(opener, folder):
    llm = opener()
    engine, llm.llm_engine = llm.llm_engine, object()
    for call in (llm.hibernate, llm.resume):
        with pytest.raises(UnsupportedError, match="data_parallel_size"):
            call(folder)
    llm.llm_engine = engine


def test_it_stays_and_can_go_on_twice(opener, written, folder, original):
    for place in (str(folder), original):
        assert opener().resume(place).num_recomputed == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == written


# -- files that are whole, and say what no engine has written ----------------------------------------------------------


def spoil(rng, value, path=()):
    """A value of decoded MessagePack, with one leaf replaced."""
    if isinstance(value, list) and value:
        index = rng.randrange(len(value))
        return [spoil(rng, part, (*path, index)) if i == index else part for i, part in enumerate(value)]
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        return {**value, key: spoil(rng, value[key])}
    return rng.choice([None, -1, 0, 7, 10**6, 2**63, 0.5, "", "x", b"abc", [], [1], {}, True])


def test_a_queue_that_was_changed_is_refused_or_right(opener, written, folder):
    """Whatever it says: an error of lullm's own before anything changes, or requests that run to their ends."""
    rng, llm = random.Random(3), opener(max_num_seqs=64)
    sealed = json.loads(written["hibernation.json"])
    queue, num_taken = msgspec.msgpack.decode(written["queue.msgpack"]), 0
    for _ in range(150):
        data = msgspec.msgpack.encode(spoil(rng, queue))
        manifest = sealed["manifest"] | {"queue_bytes": len(data), "queue_checksum": checksum_of(data)}
        text = json.dumps(manifest)
        (folder / "queue.msgpack").write_bytes(data)
        (folder / "hibernation.json").write_text(f'{{"checksum":"{checksum_of(text.encode())}","manifest":{text}}}')
        try:
            llm.resume(folder)
        except HibernationError:
            assert not llm.llm_engine.has_unfinished_requests() and llm.llm_engine.stats().num_used_blocks == 0
            continue
        num_taken += 1
        llm._resumed = {}
        for request_id in llm.llm_engine.unfinished_request_ids():
            llm.llm_engine.abort_request(request_id)
        llm.llm_engine.step()
        llm.llm_engine._block_space.check_conservation()
    assert 0 < num_taken < 150
    assert len(llm.generate("a", GREEDY, use_tqdm=False)) == 1
