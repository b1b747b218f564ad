"""Workers that are lost and started again: when that may be, and that requests go on as if nothing had happened."""

from types import SimpleNamespace

import pytest
from kit.engine.prompts import random_prompts

from lullm import LLM, SamplingParams
from lullm.engine.restarts import WINDOW_S, Restarts
from lullm.errors import WorkerLostError
from lullm.executor.executor import Executor
from lullm.executor.uniproc import LocalWorkers
from lullm.worker.worker import Worker

OPTIONS = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 24}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True, n=2, logprobs=2),
    SamplingParams(temperature=1.0, seed=3, max_tokens=14, ignore_eos=True, presence_penalty=0.5, prompt_logprobs=1),
]
PROMPTS = random_prompts(6, 60)
LOSS = WorkerLostError("worker 0 is lost")


class House:
    """The parts that a restart touches."""

    def __init__(self, limit):
        self.now = 0.0
        self.calls = []
        self.failure = None
        self.executor = SimpleNamespace(restart=self.start, weights_version=0)
        self.lifecycle = SimpleNamespace(sleeping_tags=(), forget_kv=lambda: self.calls.append("forget_kv"))
        adapters = SimpleNamespace(forget_workers=lambda: self.calls.append("forget_workers"))
        self.restarts = Restarts(limit, self.executor, self.lifecycle, adapters, lambda: self.now)

    def start(self):
        self.calls.append("restart")
        if self.failure:
            raise self.failure

    def refusal(self):
        self.calls.clear()
        with pytest.raises(WorkerLostError, match="^worker 0 is lost; ") as caught:
            self.restarts.restart(LOSS)
        return str(caught.value)


def test_so_often_within_an_hour():
    house = House(limit=2)
    for _ in range(2):
        house.restarts.restart(LOSS)
        house.now += WINDOW_S / 2 - 1
    assert house.calls == ["restart", "forget_kv", "forget_workers"] * 2
    assert "again restart_workers=2 times" in house.refusal() and not house.calls
    house.now += 3  # the first of them is more than an hour ago
    house.restarts.restart(LOSS)
    assert "again restart_workers=2 times" in house.refusal()


def test_never_by_default():
    assert "build a new engine, or have it start its workers again" in House(limit=0).refusal()


def test_what_new_workers_would_not_have():
    house = House(limit=5)
    house.lifecycle.sleeping_tags = ("weights",)
    assert "what slept in it is gone" in house.refusal() and not house.calls
    house.lifecycle.sleeping_tags = ()
    house.executor.weights_version = 1
    assert "its weights were changed" in house.refusal() and not house.calls


def test_a_start_that_fails_is_the_end():
    house = House(limit=5)
    house.failure = OSError("no such folder")
    assert "they cannot be started again: no such folder" in house.refusal() and house.calls == ["restart"]


class LosingExecutor(Executor):
    """One worker in this process, which is lost at chosen launches and results of steps; `events` counts both."""

    losses: set = set()

    def __init__(self, *given):
        self.given = given
        self.num_events = 0
        self.num_restarts = 0
        super().__init__(LocalWorkers([Worker(*given)]))

    def initialize_cache(self, *sizes):
        self.sizes = sizes
        super().initialize_cache(*sizes)

    def launch_model(self, plan):
        self.lose()
        step = super().launch_model(plan)
        return SimpleNamespace(result=lambda: (step.result(), self.lose())[0])

    def lose(self):
        self.num_events += 1
        if self.num_events in self.losses:
            raise WorkerLostError(f"lost at {self.num_events}")

    def restart(self):
        self.num_restarts += 1
        self._workers.close()
        self._workers = LocalWorkers([Worker(*self.given)])
        self.initialize_cache(*self.sizes)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_requests_go_on_from_their_tokens(qwen3_folder, monkeypatch, async_scheduling):
    """Lost at every seventh launch or result, with preemption, two sequences per request, and steps in flight."""
    options = {**OPTIONS, "distributed_executor_backend": LosingExecutor, "async_scheduling": async_scheduling}

    def answers(losses):
        monkeypatch.setattr(LosingExecutor, "losses", losses)
        with LLM(str(qwen3_folder), **options, restart_workers=1000) as llm:
            outputs = [llm.generate(PROMPTS, params, use_tqdm=False) for params in PARAMS]
            assert (llm.llm_engine.model_executor.num_restarts > 5) == bool(losses)
        assert outputs[1][0].prompt_logprobs is not None
        return [[(c.token_ids, c.finish_reason) for c in output.outputs] for each in outputs for output in each]

    assert answers(set(range(7, 100, 7))) == answers(set())


def test_a_beam_search_goes_on(qwen3_folder, monkeypatch):
    options = {**OPTIONS, "distributed_executor_backend": LosingExecutor, "restart_workers": 1000}
    params = SamplingParams(n=3, temperature=0.0, max_tokens=10, ignore_eos=True, beam_width=3)

    def answers(losses):
        monkeypatch.setattr(LosingExecutor, "losses", losses)
        with LLM(str(qwen3_folder), **options) as llm:
            return [c.token_ids for c in llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs]

    assert answers({3, 8, 13}) == answers(set())


def test_the_last_loss_ends_the_engine_with_its_words(qwen3_folder, monkeypatch):
    monkeypatch.setattr(LosingExecutor, "losses", {3, 6})
    with LLM(str(qwen3_folder), **OPTIONS, distributed_executor_backend=LosingExecutor, restart_workers=1) as llm:
        for _ in range(2):
            with pytest.raises(WorkerLostError, match="lost at 6; its workers were started again restart_workers=1"):
                llm.generate(PROMPTS[0], PARAMS[0], use_tqdm=False)
