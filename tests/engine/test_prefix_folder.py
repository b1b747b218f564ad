"""Prefix caches in folders: the next engine finds what requests of the last one had computed, with the same tokens."""

import asyncio
import fcntl
import os

import pytest
from kit.engine.async_client import collect, run, tokens, until
from kit.engine.prompts import random_prompts
from kit.folder.checkpoint import write_checkpoint

from lullm import SamplingParams
from lullm.config.engine import EngineConfig
from lullm.engine.process.client import ProcessClient
from lullm.errors import ConfigError, EngineAsleepError, HibernationError, UnsupportedError

OPTIONS = {
    "dtype": "float32",
    "max_model_len": 128,
    "block_size": 8,
    "num_gpu_blocks_override": 80,
    "swap_space": 0,
    "max_num_seqs": 16,
}
PROMPTS = [each + list(range(20)) for each in random_prompts(6, 50)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)


def answers(llm, prompts=PROMPTS):
    """Tokens of each prompt, and how many tokens of its prompt were cached."""
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    return [each.outputs[0].token_ids for each in outputs], [each.num_cached_tokens for each in outputs]


@pytest.mark.parametrize("options", [{}, {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "fp8"}], ids=str)
def test_the_next_engine_finds_them(opener, tmp_path, options):
    first = opener(**options)
    expected, _ = answers(first)
    report = first.save_prefix_cache(tmp_path / "p")
    assert report.num_requests == 0 and report.num_blocks >= sum(len(each) // 8 for each in PROMPTS)
    assert answers(first)[0] == expected, "the engine goes on"
    other = opener(**options)
    assert other.load_prefix_cache(tmp_path / "p").num_blocks == report.num_blocks
    found, num_cached = answers(other)
    assert found == expected
    assert num_cached == [(len(each) - 1) // 8 * 8 for each in PROMPTS]
    other.llm_engine._block_space.check_conservation()


def test_running_requests_leave_their_blocks_and_go_on(opener, tmp_path):
    first = opener()
    expected, _ = answers(opener(enable_prefix_caching=False))
    engine = first.llm_engine
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, GREEDY)
    found = {}
    for step in range(200):
        if step == 3:
            report = first.save_prefix_cache(tmp_path / "p")
            assert report.num_requests == 0 and report.num_blocks and engine.has_unfinished_requests()
            with pytest.raises(HibernationError, match="requests of its own"):
                first.load_prefix_cache(tmp_path / "p")
        found |= {each.request_id: each.outputs[0].token_ids for each in engine.step() if each.finished}
    assert [found[str(number)] for number in range(len(PROMPTS))] == expected
    other = opener()
    other.load_prefix_cache(tmp_path / "p")
    tokens, num_cached = answers(other)
    assert tokens == expected and all(num_cached)


def test_what_a_killed_process_left_is_removed(opener, tmp_path):
    """As long as nobody writes to it, and unless it is whole, or holds something else."""
    names = {".p.0000000a": ["queue.msgpack", "kv-0.bin"], ".p.0000000b": ["kv-0.bin"], ".p.0000000c": ["mine"]}
    names |= {".p.0000000d": ["hibernation.json", "queue.msgpack", "kv-0.bin"], ".q.0000000e": ["kv-0.bin"]}
    for folder, files in names.items():
        (tmp_path / folder).mkdir()
        for file in files:
            (tmp_path / folder / file).touch()
    writing = os.open(tmp_path / ".p.0000000b", os.O_RDONLY)
    try:
        fcntl.flock(writing, fcntl.LOCK_EX)
        llm = opener()
        answers(llm)
        llm.save_prefix_cache(tmp_path / "p")
        assert {each.name for each in tmp_path.iterdir()} == {"p", *names} - {".p.0000000a"}
    finally:
        os.close(writing)
    llm.save_prefix_cache(tmp_path / "p")
    assert not (tmp_path / ".p.0000000b").exists() and (tmp_path / ".p.0000000d/kv-0.bin").exists()


def test_a_folder_that_may_not_be_written_to_is_found_before(opener, tmp_path, monkeypatch):
    """Root may write everywhere but on a file system that is read-only; so the system's answer is made up."""
    llm = opener()
    answers(llm)
    monkeypatch.setattr(os, "access", lambda path, mode: not (os.fspath(path) == str(tmp_path) and mode & os.W_OK))
    with pytest.raises(HibernationError, match="may not be written to"):
        llm.save_prefix_cache(tmp_path / "p")
    with pytest.raises(ConfigError, match="sleep_dir: .* may not be written to"):
        opener(enable_sleep_mode=True, sleep_dir=str(tmp_path))


def test_a_smaller_cache_takes_what_was_used_last(opener, tmp_path):
    first = opener()
    expected, _ = answers(first)
    first.save_prefix_cache(tmp_path / "p")
    other = opener(num_gpu_blocks_override=20)
    assert other.load_prefix_cache(tmp_path / "p").num_blocks == 20
    tokens, num_cached = answers(other, PROMPTS[-1:])
    assert tokens == expected[-1:] and num_cached[0]
    other.llm_engine._block_space.check_conservation()


def test_a_hibernation_has_prefixes_too(opener, tmp_path):
    first = opener()
    expected, _ = answers(first)
    first.enqueue(PROMPTS[:1], GREEDY)
    first.hibernate(tmp_path / "h")
    other = opener()
    assert other.load_prefix_cache(tmp_path / "h").request_ids == ()
    assert not other.llm_engine.has_unfinished_requests()
    tokens, num_cached = answers(other)
    assert tokens == expected and all(num_cached)


def test_what_does_not_fit_is_refused(opener, tmp_path):
    first = opener()
    answers(first)
    first.save_prefix_cache(tmp_path / "p")
    strange = write_checkpoint(tmp_path / "strange", "qwen3", tie_word_embeddings=True)
    for other in (opener(strange), opener(block_size=16)):
        with pytest.raises(HibernationError, match="another engine"):
            other.load_prefix_cache(tmp_path / "p")
        answers(other)
    with (tmp_path / "p" / "kv-0.bin").open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    other = opener()
    expected, _ = answers(other)
    with pytest.raises(HibernationError, match="damaged|differs"):
        other.load_prefix_cache(tmp_path / "p")
    assert answers(other)[0] == expected
    other.llm_engine._block_space.check_conservation()


def test_a_sleeping_engine_has_to_wake_first(opener, tmp_path):
    llm = opener(enable_sleep_mode=True)
    llm.sleep()
    with pytest.raises(EngineAsleepError, match="wake_up"):
        llm.save_prefix_cache(tmp_path / "p")


def test_replicas_have_a_cache_each(opener, tmp_path):
    llm = opener(data_parallel_size=2)
    for call in (llm.save_prefix_cache, llm.load_prefix_cache):
        with pytest.raises(UnsupportedError, match="data_parallel_size"):
            call(tmp_path / "p")


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_from_an_event_loop(build, qwen3_folder, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)

    def client():
        if kind == "thread":
            return build(enable_prefix_caching=True)
        config = {"dtype": "float32", "max_model_len": 256, "num_gpu_blocks_override": 64}
        return ProcessClient(EngineConfig(model=str(qwen3_folder), **config))

    async def main():
        first, other = client(), client()
        try:
            prompt = "a conversation that goes on tomorrow, when another process serves it"
            expected = tokens(await collect(first, prompt))
            running = asyncio.create_task(collect(first, prompt + " more", request_id="y"))
            await until(lambda: first.stats().num_running)
            await first.save_prefix_cache("p")
            assert len(tokens(await running)) == 20
            assert (await other.load_prefix_cache("p")).num_blocks
            outputs = await collect(other, prompt)
            assert tokens(outputs) == expected and outputs[-1].num_cached_tokens
        finally:
            await first.shutdown()
            await other.shutdown()

    run(main())
