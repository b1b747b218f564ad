"""A real model behind plans as bytes, and with three steps in flight: the same tokens every time."""

from types import SimpleNamespace

import pytest

from lullm import LLM
from lullm.config.resolved import ResolvedConfig
from lullm.types.step import StepPlan
from lullm.types.step_codec import decode_plan, decode_result, encode_plan, encode_result

from .test_overlap import run, workload

SWAPPING = {"num_gpu_blocks_override": 40, "block_size": 8, "preemption_mode": "swap"}


@pytest.fixture(scope="module")
def requests():
    return workload(48, seed=7)


@pytest.fixture(scope="module")
def expected(qwen3_folder, requests):
    return run(qwen3_folder, requests)[0]


def far_workers(llm: LLM) -> None:
    """Plans and results go through bytes, as to a worker in another process."""
    executor = llm.llm_engine.model_executor
    launch = executor.launch_model

    def launch_far(plan: StepPlan):
        received = decode_plan(encode_plan(plan))
        assert received == plan
        running = launch(received)
        return SimpleNamespace(result=lambda: decode_result(encode_result(running.result())))

    executor.launch_model = launch_far


@pytest.mark.parametrize("options", [{}, {"async_scheduling": True}, SWAPPING], ids=["plain", "ahead", "swapping"])
def test_plans_as_bytes(qwen3_folder, requests, expected, options):
    tokens, _, stats = run(qwen3_folder, requests, prepare=far_workers, **options)
    assert tokens == expected
    assert stats.num_preemptions > 0 or options is not SWAPPING


@pytest.mark.parametrize("options", [{}, {"enable_chunked_prefill": False, "max_num_batched_tokens": 128}, SWAPPING])
def test_three_steps_in_flight(qwen3_folder, requests, expected, monkeypatch, options):
    monkeypatch.setattr(ResolvedConfig, "max_in_flight", property(lambda config: 3))
    tokens, num_ahead, stats = run(qwen3_folder, requests, **options)
    assert tokens == expected
    assert num_ahead > stats.steps_total, "more than one step ahead, most of the time"
