"""Adapters of a fleet's models: they outlive sleeps and engines, wake nothing when they are added, and count."""

import asyncio
import contextlib
import itertools
import json
import shutil
from pathlib import Path

import pytest
from kit.fleet.real import make_fleet, spec
from kit.folder.draft import write_draft
from kit.model.lora import merged, write_adapter

from lullm import LLM, LoRARequest, SamplingParams
from lullm.config.lora.module import parse_module
from lullm.errors import ConfigError, InvalidRequestError, ModelLoadError
from lullm.fleet.fleet import Fleet
from lullm.fleet.options import check_names

PARAMS = SamplingParams(temperature=0, max_tokens=12)
PROMPT = "the quick brown"
NUMBERS = itertools.count()
ADAPTING = {"enable_lora": True, "max_lora_rank": 8}


@pytest.fixture(scope="module")
def adapter(qwen3_folder, tmp_path_factory):
    """(its folder, its tokens)"""
    root = tmp_path_factory.mktemp("adapter")
    folder = write_adapter(root / "sql", qwen3_folder, seed=1)
    with LLM(str(merged(root / "merged", qwen3_folder, folder)), dtype="float32", num_gpu_blocks_override=40) as llm:
        return folder, llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids


@pytest.fixture
def both(qwen3_folder, llama_folder):
    """Two models, of which one fits; the first takes adapters."""
    return [spec("a", qwen3_folder, ADAPTING), spec("b", llama_folder)]


def run(fleet: Fleet, work) -> None:
    async def whole() -> None:
        try:
            await work(fleet)
        finally:
            await fleet.shutdown(drain=False)

    asyncio.run(whole())


async def ask(fleet: Fleet, name: str, lora: LoRARequest | None = None, params: SamplingParams = PARAMS) -> list[int]:
    async for output in fleet.members[name].generate(PROMPT, params, str(next(NUMBERS)), lora_request=lora):
        tokens = output.outputs[0].token_ids
    return tokens


def states(fleet: Fleet) -> list[str]:
    return list(fleet.states().values())


@pytest.mark.parametrize("evict_to", ["ram", "2", "unload"])
def test_they_outlive_sleeps_and_engines(qwen3_folder, llama_folder, adapter, evict_to):
    folder, expected = adapter

    async def work(fleet: Fleet) -> None:
        a, lora = fleet.members["a"], LoRARequest("sql", 1, str(folder))
        assert await a.add_lora(lora) and not await a.add_lora(lora) and await a.list_loras() == {1}
        assert states(fleet) == ["unloaded", "unloaded"], "adding one loads nothing"
        plain = await ask(fleet, "a")
        assert plain != expected
        for _ in range(2):
            assert await ask(fleet, "a", lora) == expected
            await ask(fleet, "b")
            assert states(fleet)[0] == ("unloaded" if evict_to == "unload" else "sleeping")
        assert await asyncio.gather(ask(fleet, "a", lora), ask(fleet, "b"), ask(fleet, "a", lora))
        assert await ask(fleet, "a") == plain

    run(make_fleet(spec("a", qwen3_folder, ADAPTING, evict_to=evict_to), spec("b", llama_folder)), work)


def test_in_a_process_of_its_own(both, adapter, tmp_path):
    folder = shutil.copytree(adapter[0], tmp_path / "sql")

    async def work(fleet: Fleet) -> None:
        a, lora = fleet.members["a"], LoRARequest("sql", 1, str(folder))
        await a.add_lora(lora)
        assert await ask(fleet, "a", lora) == adapter[1]
        await fleet.unload("a")
        shutil.rmtree(folder)
        write_adapter(folder, Path(both[0].config.model), seed=2)
        with pytest.raises(ModelLoadError, match="has another content than when the adapter 'sql' was added"):
            await ask(fleet, "a", lora)

    run(make_fleet(*both, has_process=True), work)


@pytest.mark.parametrize("change", ["gone", "changed", "damaged"])
def test_a_folder_that_is_not_what_it_was(both, adapter, tmp_path, change):
    """Requests of the adapter say why, and those of its model go on. Added anew, it is what it is now."""
    folder = shutil.copytree(adapter[0], tmp_path / "sql")

    async def work(fleet: Fleet) -> None:
        a, lora = fleet.members["a"], LoRARequest("sql", 1, str(folder))
        await a.add_lora(lora)
        plain = await ask(fleet, "a")
        await fleet.unload("a")
        if change == "damaged":
            (folder / "adapter_model.safetensors").write_bytes(b"nonsense")
        else:
            shutil.rmtree(folder)
        if change == "changed":
            write_adapter(folder, Path(both[0].config.model), seed=2)
        words = {"gone": "is no folder", "changed": "has another content", "damaged": "is damaged or incomplete"}
        for _ in range(2):
            with pytest.raises(ModelLoadError, match=words[change]):
                await ask(fleet, "a", lora)
            assert await ask(fleet, "a") == plain and states(fleet)[0] == "awake"
        assert await a.remove_lora(1)
        shutil.copytree(adapter[0], folder, dirs_exist_ok=True)
        again = LoRARequest("sql", 2, str(folder))
        await a.add_lora(again)
        assert await ask(fleet, "a", again) == adapter[1]

    run(make_fleet(*both), work)


def test_what_is_no_adapter_of_the_model_is_found_without_it(both, adapter, llama_folder, tmp_path):
    wide = write_adapter(tmp_path / "wide", Path(both[0].config.model), rank=16)
    foreign = write_adapter(tmp_path / "foreign", llama_folder, targets=r"\.q_proj\.weight$")

    async def work(fleet: Fleet) -> None:
        a, b = fleet.members.values()
        for path, words in ((wide, "above max_lora_rank=8"), (tmp_path / "none", "is no folder")):
            with pytest.raises(ModelLoadError, match=words):
                await a.add_lora(LoRARequest("x", 1, str(path)))
        with contextlib.suppress(ModelLoadError):
            await a.add_lora(LoRARequest("x", 2, str(foreign)))
        with pytest.raises(InvalidRequestError, match="needs an engine with enable_lora=True"):
            await b.add_lora(LoRARequest("x", 1, str(adapter[0])))
        with pytest.raises(InvalidRequestError, match="needs an engine with enable_lora=True"):
            await ask(fleet, "b", LoRARequest("x", 1, str(adapter[0])))
        await a.add_lora(LoRARequest("x", 3, str(adapter[0])))
        with pytest.raises(InvalidRequestError, match="lora_int_id 3 is the adapter 'x' of"):
            await a.add_lora(LoRARequest("y", 3, str(adapter[0])))
        assert states(fleet) == ["unloaded", "unloaded"]

    run(make_fleet(*both), work)


def test_beside_quantized_matrices(qwen3_folder, adapter):
    async def work(fleet: Fleet) -> None:
        lora = LoRARequest("sql", 1, str(adapter[0]))
        await fleet.members["a"].add_lora(lora)
        assert await ask(fleet, "a", lora) != await ask(fleet, "a")

    run(make_fleet(spec("a", qwen3_folder, ADAPTING | {"quantization": "int8"})), work)


def test_adding_one_builds_no_model(both, adapter, monkeypatch):
    """With 128 experts that took 2.5 s for each adapter."""
    fleet = make_fleet(*both)
    monkeypatch.delattr("lullm.models.registry.build_model")

    async def work(fleet: Fleet) -> None:
        assert await fleet.members["a"].add_lora(LoRARequest("sql", 1, str(adapter[0])))

    run(fleet, work)


def test_one_that_is_removed_serves_its_requests(both, adapter):
    """Those that run, and those that wait until their model is awake."""
    long = PARAMS.replace(max_tokens=100, ignore_eos=True)

    async def work(fleet: Fleet) -> None:
        a, lora = fleet.members["a"], LoRARequest("sql", 1, str(adapter[0]))
        await a.add_lora(lora)
        expected, first = await ask(fleet, "a", lora, long), asyncio.Event()

        async def talk() -> list[int]:
            async for output in a.generate(PROMPT, long, "long", lora_request=lora):
                first.set()
                tokens = output.outputs[0].token_ids
            return tokens

        talking = asyncio.ensure_future(talk())
        await first.wait()
        assert await a.remove_lora(1) and not await a.remove_lora(1)
        assert not talking.done() and await a.list_loras() == set()
        assert await talking == expected
        assert await a.engine.list_loras() == set()
        await ask(fleet, "b")
        again = LoRARequest("sql", 2, str(adapter[0]))
        await a.add_lora(again)
        with fleet.use("b"):
            waiting = asyncio.ensure_future(ask(fleet, "a", again))
            while not fleet.policy.records["a"].waiting:
                await asyncio.sleep(0)
            assert await a.remove_lora(2), "its model sleeps"
        assert await waiting == adapter[1]

    run(make_fleet(*both), work)


def test_the_budget_has_room_for_them(qwen3_folder):
    """What is planned is what the engine maps, and as much again in host memory, which stays asleep."""
    options = ADAPTING | {"max_loras": 3, "max_cpu_loras": 5}

    async def work(fleet: Fleet) -> None:
        need = fleet.policy.records["a"].terms.need
        await ask(fleet, "a")
        worker = fleet.members["a"].engine._engine.model_executor.driver_worker
        mapped = worker.adapters.arena.used_bytes
        assert need.adapters_bytes == pytest.approx(mapped * (1 + 5 / 3), rel=0.02)
        assert need.asleep_bytes > mapped * 5 / 3 * 0.98
        assert fleet.policy.held_bytes >= need.weights_bytes + need.kv_bytes + need.adapters_bytes

    run(make_fleet(spec("a", qwen3_folder, options)), work)


def test_the_budget_has_room_for_a_draft_model(qwen3_folder, tmp_path):
    """It was left out."""
    draft = {"model": str(write_draft(qwen3_folder, tmp_path / "draft", num_layers=1)), "num_speculative_tokens": 2}

    async def work(fleet: Fleet) -> None:
        need = fleet.policy.records["a"].terms.need
        await ask(fleet, "a")
        worker = fleet.members["a"].engine._engine.model_executor.driver_worker
        weights = worker.loaded.arena.used_bytes + worker.draft.loaded.arena.used_bytes
        assert need.weights_bytes == pytest.approx(weights, rel=0.02)
        assert need.kv_bytes == worker.pools.block_bytes * len(worker.pools.device[0].key)

    run(make_fleet(spec("a", qwen3_folder, {"speculative_config": json.dumps(draft)})), work)


def test_what_is_refused_at_the_start(qwen3_folder, llama_folder):
    def named(*modules: str, name: str = "a", **facts):
        return spec(name, qwen3_folder, ADAPTING, lora_modules=tuple(map(parse_module, modules)), **facts)

    with pytest.raises(ConfigError, match="two models are called 'sql'.* alias or adapter"):
        check_names([named("sql=/x"), named("sql=/y", name="b")])
    with pytest.raises(ConfigError, match="two models are called 'b'"):
        check_names([named("b=/x"), spec("b", llama_folder)])
    with pytest.raises(ConfigError, match="two models are called 'sql'"):
        check_names([named("sql=/x", "sql=/y")])
    with pytest.raises(ConfigError, match="two models are called 'c'"):
        check_names([named("c=/x", aliases=("c",))])
    with pytest.raises(ConfigError, match="'a' has lora_modules, which need enable_lora=True"):
        spec("a", qwen3_folder, lora_modules=(parse_module("sql=/x"),))
    with pytest.raises(ConfigError, match="'sql' of the model 'a' says that it is for 'b'"):
        named('{"name": "sql", "path": "/x", "base_model_name": "b"}')
    assert named('{"name": "sql", "path": "/x", "base_model_name": "first"}', aliases=("first",))
    with pytest.raises(ConfigError, match=r"adapters [\d.]+ .iB, working memory"):
        make_fleet(named(), fits=0.5)
