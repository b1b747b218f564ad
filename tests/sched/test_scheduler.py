"""The scheduler, step by step, over a simulated worker."""

import pytest
from kit.sched.simulation import Simulation

from lullm.errors import InvalidRequestError
from lullm.sched.preemption import PreemptionPolicy
from lullm.types.sequence import SequenceStatus


def spans(plan):
    return [(s.seq_id, s.start, s.end) for s in plan.spans]


def test_a_long_prompt_is_chunked_and_decodes_go_on_beside_it():
    sim = Simulation(max_num_batched_tokens=8)
    sim.add("a", [0] * 3, max_tokens=20)
    sim.step()
    sim.add("b", [1] * 17, max_tokens=2)
    sim.step()
    sim.step()
    sim.step()
    assert [spans(p) for p in sim.plans] == [
        [(0, 0, 3)],
        [(0, 3, 4), (1, 0, 7)],
        [(0, 4, 5), (1, 7, 14)],
        [(0, 5, 6), (1, 14, 17)],
    ]
    assert sim.plans[2].spans[1].draws == ()
    assert len(sim.plans[3].spans[1].draws) == 1


def test_a_running_prompt_leaves_every_later_sequence_its_token():
    sim = Simulation(max_num_batched_tokens=8, policy="priority")
    sim.add("late", [0] * 3, priority=5, max_tokens=20)
    sim.step()
    sim.add("urgent", [1] * 30, priority=1, max_tokens=2)
    sim.step()
    sim.step()
    assert spans(sim.plans[2]) == [(1, 7, 14), (0, 4, 5)]


def test_equal_prompts_that_arrive_together_are_computed_once():
    sim = Simulation()
    for name in "abc":
        sim.add(name, list(range(10)), max_tokens=3)
    sim.step()
    assert spans(sim.plans[0]) == [(0, 0, 10), (1, 8, 10), (2, 8, 10)]
    sim.run()


def test_a_cache_hit_shows_in_the_group():
    sim = Simulation()
    sim.add("a", list(range(10)), max_tokens=1)
    sim.run()
    group = sim.add("b", list(range(10)), max_tokens=1)
    sim.run()
    assert group.num_cached_tokens == 8


def test_parallel_sampling_shares_the_prompt():
    sim = Simulation(num_blocks=16, enable_prefix_caching=False)
    group = sim.add("a", [0] * 10, n=4, max_tokens=3)
    sim.step()
    assert len(group.seqs) == 4
    assert len(sim.plans[0].spans[0].draws) == 4
    assert sim.block_space.num_used_blocks == 3
    sim.step()
    assert len(sim.plans[1].blocks_to_copy) == 3, "three copies; the last holder writes in place"
    assert sim.block_space.num_used_blocks == 2 + 4
    sim.run()
    assert {seq.status.finish_reason for seq in group.seqs} == {"length"}
    assert sim.block_space.num_used_blocks == 0


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_block_that_another_request_had_first_is_merged_before_anything_is_preempted(n):
    sim = Simulation(num_blocks=20 + n, max_num_batched_tokens=80, watermark=0.0, max_model_len=80)
    prompt = list(range(40))
    sim.add("first", prompt, max_tokens=4)
    sim.add("second", prompt, prompt_logprobs=0, n=n, max_tokens=4)  # which computes the cached prompt again
    sim.step()
    assert sim.block_space.num_used_blocks == 20, "the own blocks are written in this step"
    sim.step()
    assert not sim.preempted
    assert sim.block_space.num_used_blocks == 10 + 1 + n, "the prompt once, and a block for each sequence"
    sim.run()


def test_preemption_recomputes_to_the_same_tokens():
    def outputs(num_blocks, **options):
        sim = Simulation(num_blocks=num_blocks, max_num_seqs=8, **options)
        groups = [sim.add(str(i), [i % 2] * (5 + i), n=1 + i % 3, max_tokens=20) for i in range(6)]
        sim.run()
        return [[s.token_ids for s in g.seqs] for g in groups], sim.scheduler.preemption.num_preemptions

    roomy, none = outputs(256)
    for caching in (True, False):
        tight, some = outputs(24, enable_prefix_caching=caching)
        assert tight == roomy
        assert none == 0 and some > 0


def test_the_last_in_order_is_preempted_and_returns_first():
    sim = Simulation(num_blocks=6, block_size=4, enable_prefix_caching=False, max_model_len=24, watermark=0.0)
    sim.add("first", [0] * 8, max_tokens=12)
    sim.add("second", [1] * 8, max_tokens=12)
    for _ in range(5):
        sim.step()
    assert not sim.preempted
    sim.add("third", [1] * 4, max_tokens=1)
    for _ in range(5):
        sim.step()
    assert sim.preempted == {"second": 1}
    assert [u.group.request_id for u in sim.run()] == ["first", "third", "second"]


def prompts_first(num_blocks, **options):
    return Simulation(
        num_blocks=num_blocks, num_host_blocks=16, max_num_batched_tokens=64, watermark=0.0,
        preemption=PreemptionPolicy("swap"), enable_chunked_prefill=False, enable_prefix_caching=False, **options,
    )  # fmt: skip


def test_prompts_first_decodes_beside_a_group_that_comes_back_from_the_host():
    sim = prompts_first(12)
    for name, max_tokens in (("first", 16), ("second", 12), ("third", 12)):
        sim.add(name, [0] * 8, max_tokens=max_tokens)
    ends = [update.group.request_id for update in sim.run()]
    assert sim.preempted == {"third": 1} and ends == ["second", "third", "first"]
    [plan] = [plan for plan in sim.plans if plan.blocks_to_swap_in]
    assert spans(plan) == [(0, 19, 20), (2, 16, 17)], "the first decodes on while the third is swapped in"
    assert len(sim.plans) == 1 + 15, "a step for the prompts and one for each further token of the first: none stalls"


def test_prompts_first_never_mixes_prompts_with_decodes():
    sim = prompts_first(12)
    for name, max_tokens in (("first", 16), ("second", 12), ("third", 12)):
        sim.add(name, [0] * 8, max_tokens=max_tokens)
    while not sim.preempted:
        sim.step()
    sim.add("late", [1] * 7, max_tokens=3)
    ends = [update.group.request_id for update in sim.run()]
    assert ends == ["second", "third", "first", "late"], "no prompt goes past the older group on the host"
    assert [spans(plan) for plan in sim.plans if spans(plan)[0][1] == 0] == [
        [(0, 0, 8), (1, 0, 8), (2, 0, 8)],
        [(3, 0, 7)],
    ]


def test_a_group_that_outgrows_the_whole_pool_is_capped(caplog):
    sim = Simulation(num_blocks=4, block_size=4, max_model_len=64)
    group = sim.add("a", [0] * 6, max_tokens=60)
    updates = sim.run()
    assert updates[-1].drawn is None
    assert group.seqs[0].status is SequenceStatus.FINISHED_LENGTH_CAPPED
    assert len(group.seqs[0]) == 17, "16 slots, and the token drawn from the last"
    assert group.seqs[0].stop_reason == "kv_cache_full" and sim.scheduler.stats.kv_cache_full == 1
    [warning] = caplog.messages
    assert "request 'a' is cut at 17 tokens" in warning and "all 4 KV blocks" in warning
    assert "kv_cache_memory_bytes" in warning
    assert sim.block_space.num_used_blocks == 0


def test_beams_that_outgrow_the_whole_pool_say_so():
    sim = Simulation(num_blocks=8, block_size=4, max_model_len=64)
    group = sim.add("a", [0] * 6, beam_width=3, max_tokens=50)
    sim.run()
    assert {(h.finish_reason, h.stop_reason) for h in group.hypotheses} == {("length", "kv_cache_full")}
    assert sim.scheduler.stats.kv_cache_full == 1 and sim.block_space.num_used_blocks == 0


def test_the_model_length_ends_a_sequence():
    sim = Simulation(max_model_len=12)
    group = sim.add("a", [0] * 10, max_tokens=None)
    sim.run()
    assert len(group.seqs[0]) == 12
    assert group.seqs[0].status is SequenceStatus.FINISHED_LENGTH_CAPPED
    assert group.seqs[0].stop_reason is None and sim.scheduler.stats.kv_cache_full == 0


def test_end_of_sequence_and_stop_tokens():
    sim = Simulation()
    sim.memory.choose = lambda draw, tokens: 7
    ended = sim.add("eos", [0], end=7, max_tokens=5)
    stopped = sim.add("stop", [0], stop_token_ids=[7], max_tokens=5)
    later = sim.add("later", [0], end=7, min_tokens=3, max_tokens=5)
    sim.run()
    assert (len(ended.seqs[0]), ended.seqs[0].stop_reason) == (2, None)
    assert (len(stopped.seqs[0]), stopped.seqs[0].stop_reason) == (2, 7)
    assert len(later.seqs[0]) == 4


def test_prompt_logprobs_come_once_through_chunks_and_preemption():
    sim = Simulation(num_blocks=8, max_num_batched_tokens=4, max_num_seqs=4, watermark=0.0)
    prompt = list(range(17))
    sim.add("busy", [50, 51, 52], max_tokens=20)
    group = sim.add("a", prompt, prompt_logprobs=2, max_tokens=3)
    sim.run()
    assert [row[0][0] for row in group.prompt_logprobs] == prompt[1:]


def test_abort_frees_at_once_in_every_state():
    sim = Simulation(num_blocks=8, max_num_seqs=1)
    sim.add("running", [0] * 6)
    sim.add("waiting", [0] * 6)
    sim.step()
    for request_id in ("waiting", "running"):
        assert sim.scheduler.abort(request_id).seqs[0].status is SequenceStatus.FINISHED_ABORTED
        assert sim.scheduler.abort(request_id) is None
    assert sim.block_space.num_used_blocks == 0
    assert not sim.scheduler.has_unfinished
    assert sim.scheduler.plan().is_empty
    sim.add("running", [1] * 3, max_tokens=1)
    assert sim.run()[0].group.request_id == "running"


def test_a_removed_id_may_come_back_while_its_old_queue_entry_is_there():
    sim = Simulation(max_num_seqs=1)
    sim.add("first", [0] * 3, max_tokens=3)
    sim.add("x", [0] * 3, max_tokens=1)
    sim.add("y", [0] * 3, max_tokens=1)
    sim.step()
    sim.scheduler.abort("x")
    sim.add("x", [1] * 3, max_tokens=1)
    assert [u.group.request_id for u in sim.run()] == ["first", "y", "x"]


def test_priority_goes_before_arrival():
    sim = Simulation(max_num_seqs=1, policy="priority")
    for name, priority in (("low", 9), ("high", 1), ("also-high", 1)):
        sim.add(name, [0], priority=priority, max_tokens=1)
    assert [u.group.request_id for u in sim.run()] == ["high", "also-high", "low"]


@pytest.mark.parametrize("enable_chunked_prefill", [True, False])
def test_an_urgent_request_takes_the_place_of_a_running_one(enable_chunked_prefill):
    sim = Simulation(
        num_blocks=6, max_num_batched_tokens=64, policy="priority", enable_chunked_prefill=enable_chunked_prefill
    )
    sim.add("low", [0] * 16, priority=9, max_tokens=6)
    sim.step()
    sim.add("high", [1] * 9, priority=1, max_tokens=3)
    assert [u.group.request_id for u in sim.run()] == ["high", "low"]
    assert sim.preempted == {"low": 1}


def test_what_can_never_run_is_refused_and_leaves_nothing():
    sim = Simulation(num_blocks=4, max_num_seqs=4)
    with pytest.raises(InvalidRequestError, match="5 KV blocks") as error:
        sim.add("a", [0] * 17)
    assert error.value.param == "prompt"
    with pytest.raises(InvalidRequestError, match="max_num_seqs") as error:
        sim.add("a", [0], n=5)
    assert error.value.param == "n"
    sim.add("a", [0])
    with pytest.raises(InvalidRequestError, match="already in use"):
        sim.add("a", [0])
    sim.run()
    assert sim.scheduler.roster._members == {}


def test_a_window_lets_a_prompt_be_longer_than_the_pool():
    sim = Simulation(num_blocks=4, block_size=4, windows=(6,), max_model_len=200)
    group = sim.add("a", [0] * 100, max_tokens=50)
    sim.run()
    assert len(group.seqs[0]) == 150
    assert sim.scheduler.preemption.num_preemptions == 0


@pytest.mark.parametrize("window", [1, 5, 8])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption_in_a_window_changes_nothing(window, enable_prefix_caching, mode):
    def outputs(num_blocks):
        sim = Simulation(
            num_blocks=num_blocks, num_host_blocks=16, max_num_seqs=12, max_num_batched_tokens=16, windows=(window,),
            enable_prefix_caching=enable_prefix_caching, preemption=PreemptionPolicy(mode),
        )  # fmt: skip
        groups = [sim.add(str(i), [i % 2] * (15 + i), n=1 + i % 3, max_tokens=20) for i in range(6)]
        groups.append(sim.add("beams", [0, 1] * 8, beam_width=3, max_tokens=20, temperature=0.0))
        sim.run()
        tokens = [[s.token_ids for s in g.seqs] for g in groups[:-1]]
        return tokens, [h.token_ids for h in groups[-1].hypotheses], sim.scheduler.preemption.num_preemptions

    *roomy, none = outputs(256)
    *tight, some = outputs(6 if window == 1 else 10)
    assert tight == roomy
    assert none == 0 and some > 0


def test_a_lost_step_that_forks_does_not_repeat_the_prompt():
    """Its forks compute the prompt again, too; the log-probabilities of the prompt still come once."""
    sim = Simulation()
    group = sim.add("a", [0, 1, 1], max_tokens=2, n=4, prompt_logprobs=0)
    assert len(sim.scheduler.plan().spans) == 1 and len(group.seqs) == 4
    sim.scheduler.evict_all()
    sim.run()
    assert [row[0][0] for row in group.prompt_logprobs] == [1, 1]


@pytest.mark.parametrize("windows", [(None,), (3,), (6, None)])
def test_forks_whose_first_token_was_lost_draw_it_again(windows):
    """Also if the prompt fills its last block: they shared that, had nothing left to compute, and waited for ever."""
    sim = Simulation(windows=windows)
    size = sim.block_space.block_size
    sim.add("a", [0, 1] * size, max_tokens=2, n=4)
    sim.scheduler.plan()
    sim.lose_memory()
    assert len([update for update in sim.run() if update.is_end]) == 4
