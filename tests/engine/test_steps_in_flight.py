"""A real model behind plans as bytes, with three steps in flight, and with drafts: the same tokens every time."""

from types import SimpleNamespace

import pytest

from lullm import LLM
from lullm.config.resolved import ResolvedConfig
from lullm.types.packed import unpack
from lullm.types.step import StepPlan, StepResult
from lullm.types.step_codec import decode_plan, decode_result, encode_plan, encode_result

from .test_overlap import run, workload

SWAPPING = {"num_gpu_blocks_override": 40, "block_size": 8, "preemption_mode": "swap"}


@pytest.fixture(scope="module")
def requests():
    return workload(48, seed=7)


@pytest.fixture(scope="module")
def expected(qwen3_folder, requests):
    return run(qwen3_folder, requests)[0]


def far_workers(llm: LLM, verify=lambda plan, result: result) -> None:
    """Plans and results go through bytes, as to a worker in another process."""
    executor = llm.llm_engine.model_executor
    launch = executor.launch_model

    def launch_far(plan: StepPlan):
        received = decode_plan(encode_plan(plan))
        assert received == plan
        running = launch(received)
        return SimpleNamespace(result=lambda: decode_result(encode_result(verify(received, running.result()))))

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


def test_drafts(qwen3_folder, requests, expected):
    """Drafts of what was drawn without them, with mistakes: spans that draw at several rows draw the same tokens."""
    num_drafts = 0

    def propose(llm: LLM, _) -> None:
        for group in llm.llm_engine._scheduler.running:
            for seq in group.unfinished:
                known = expected.get((group.request_id, seq.index), ([],))[0]
                drafts = known[seq.output_len : seq.output_len + 3]
                seq.draft_token_ids = [*drafts[:2], *(token_id + 1 for token_id in drafts[2:])]

    def verify(plan: StepPlan, result: StepResult) -> StepResult:
        nonlocal num_drafts
        drawn = iter(result.tokens)
        for span in plan.spans:
            tokens = [next(drawn).token_id for _ in span.draws]
            if span.draws and span.draws[-1].row > span.draws[0].row:
                drafts = unpack(span.token_ids)[-len(tokens) + 1 :]
                num_right = next((i for i, draft in enumerate(drafts) if draft != tokens[i]), len(drafts))
                result.num_accepted[span.seq_id] = num_right + 1
                num_drafts += num_right
        return result

    plain = run(qwen3_folder, requests)[2]
    tokens, _, stats = run(qwen3_folder, requests, propose, lambda llm: far_workers(llm, verify))
    assert tokens == expected
    assert num_drafts > 100 and stats.steps_total < plain.steps_total
