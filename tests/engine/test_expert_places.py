"""Experts that change places between workers: what is counted, and the same tokens, whatever comes before and after."""

import pytest
from kit.engine.same_tokens import check_equal, engines
from kit.folder.checkpoint import write_checkpoint
from kit.model.decisive import decisive_tokens
from kit.worker.threads import MeetingExecutor, ThreadExecutor, use_threads
from safetensors.torch import load_file

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, EngineAsleepError, EngineDeadError, WorkerLostError
from lullm.ops.cpu.library import absence
from lullm.types.parallel.experts import LayerExperts

OPTIONS = {"dtype": "float32", "max_model_len": 128, "block_size": 8, "enable_prefix_caching": False}
EP = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "enable_sleep_mode": True}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    return write_checkpoint(tmp_path_factory.mktemp("experts"), "qwen3_moe", **sizes)


def answers_of(folder, **options):
    return decisive_tokens(folder, 3, 24, **OPTIONS | options)


@pytest.fixture(scope="module")
def expected(folder):
    return answers_of(folder)


@pytest.fixture
def shared(folder, monkeypatch):
    """Makes an engine of two workers with four experts each."""
    use_threads(monkeypatch, MeetingExecutor if absence() is None else ThreadExecutor)
    with engines(folder, OPTIONS | EP) as open_shared:
        yield open_shared


def slots_of(llm):
    return [each.slots for each in llm.collective_rpc(lambda worker: worker.layer_experts())[0]]


def unbalance(llm):
    """As if the experts that the first worker has now had had all the work of a day."""
    for worker in llm.llm_engine.model_executor.workers:
        for layer in worker.loaded.model.model.layers:
            by_slot = layer.mlp.load.new_tensor([500, 400, 300, 200, 0, 0, 0, 1])
            layer.mlp.load[:] = by_slot[layer.mlp.slot_of_expert]


def test_every_token_counts_for_its_experts(folder):
    """Of prompts, of steps that are recorded, and of their replays."""
    with LLM(str(folder), **OPTIONS) as llm:
        assert not any(map(any, llm.expert_load().tokens.values())), "nothing that was measured"
        num_tokens = 0
        for prompts in (["hello"], ["a b c", "the quick brown fox"], ["hello"]):
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
            num_tokens += sum(len(output.prompt_token_ids) + 24 - 1 for output in outputs)
        load = llm.expert_load(clear=True)
        assert [sum(tokens) for tokens in load.tokens.values()] == [2 * num_tokens] * 3
        assert load.workers == dict.fromkeys(range(3), [[0]] * 8) and load.balance == 1.0
        assert not any(map(any, llm.expert_load().tokens.values()))
        with pytest.raises(ConfigError, match="enable_expert_parallel"):
            llm.rebalance_experts()


def test_what_is_told_of_two_workers(shared, expected, monkeypatch):
    monkeypatch.setattr("lullm.engine.step_loop._EXPERTS_EVERY", 20)
    llm = shared()
    assert llm.llm_engine.stats().expert_balance is None
    check_equal(llm, expected)
    assert 0.5 <= llm.llm_engine.stats().expert_balance < 1
    load = llm.expert_load()
    assert load.workers[0] == [[0]] * 4 + [[1]] * 4 and load.balance < 1
    workers = llm.llm_engine.model_executor.workers
    assert workers[0].layer_experts() == workers[1].layer_experts(), "routing is the same on all"
    move = llm.rebalance_experts()
    assert move.before == load.balance <= move.after == llm.expert_load().balance
    check_equal(llm, expected)


def test_tokens_after_a_move_with_everything_behind_it(shared, folder, expected):
    llm = shared()
    check_equal(llm, expected)  # steps are recorded
    unbalance(llm)
    engine = llm.llm_engine
    for prompt in expected:
        engine.add_request(prompt, prompt, GREEDY)
    for _ in range(5):
        engine.step()
    move = llm.rebalance_experts()
    assert move.num_moved == 3 * 4 and move.after > 0.95 > move.before
    assert all(sorted(slots) == list(range(8)) != list(slots) for slots in slots_of(llm))
    found = {}
    while engine.has_unfinished_requests():
        found |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
    assert found == expected, "requests that ran go on"
    for level in (1, 2):
        llm.sleep(level)
        with pytest.raises(EngineAsleepError):
            unbalance(llm)
            llm.rebalance_experts()
        llm.wake_up()
        check_equal(llm, expected)
    tensors = load_file(folder / "model.safetensors")
    changed = {name: tensor * (1.25 if ".experts." in name else 1.0) for name, tensor in tensors.items()}
    assert llm.update_weights(iter(changed.items())) == len(changed)
    other = llm.generate(list(expected), GREEDY, use_tqdm=False)
    other = {prompt: output.outputs[0].token_ids for prompt, output in zip(expected, other, strict=True)}
    assert other != expected
    places = slots_of(llm)
    unbalance(llm)
    assert llm.rebalance_experts().num_moved and slots_of(llm) != places
    check_equal(llm, other)
    llm.sleep(1)  # what was changed is kept, under the names that it has now
    llm.wake_up()
    check_equal(llm, other)
    llm.collective_rpc("reload_weights")
    check_equal(llm, expected)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_integers_move_as_they_are(shared, folder, quantization):
    alone = answers_of(folder, quantization=quantization)
    llm = shared(quantization=quantization)
    unbalance(llm)
    assert llm.rebalance_experts().num_moved == 3 * 4
    check_equal(llm, alone)
    llm.sleep(2)
    llm.wake_up()
    check_equal(llm, alone)


def test_a_worker_that_fails_half_way_ends_the_engine(shared, monkeypatch):
    llm = shared()
    workers = llm.llm_engine.model_executor.workers
    unbalance(llm)

    def fail(swaps):
        raise MemoryError("no room for an expert")

    for worker in workers:
        monkeypatch.setattr(worker, "swap_experts", fail)
    with pytest.raises(EngineDeadError, match="died in rebalance_experts: MemoryError"):
        llm.rebalance_experts()
    with pytest.raises(EngineDeadError, match="no room for an expert"):
        llm.generate("hello", GREEDY, use_tqdm=False)


def test_a_worker_that_is_lost(shared, monkeypatch):
    llm = shared()
    unbalance(llm)

    def fail(swaps):
        raise WorkerLostError("worker 1 has died")

    monkeypatch.setattr(llm.llm_engine.model_executor.workers[1], "swap_experts", fail)
    monkeypatch.setattr(llm.llm_engine.model_executor.workers[0], "swap_experts", lambda swaps: None)
    with pytest.raises(WorkerLostError, match="has died"):
        llm.rebalance_experts()


def test_experts_that_are_not_alike(shared, monkeypatch):
    llm = shared()
    mixed = [LayerExperts(0, (1, 2), (0, 1), 1, "")]
    for worker in llm.llm_engine.model_executor.workers:
        monkeypatch.setattr(worker, "layer_experts", lambda: mixed)
    with pytest.raises(Exception, match="not stored in one way"):
        llm.rebalance_experts()
    monkeypatch.undo()
    llm.generate("hello", GREEDY, use_tqdm=False)
