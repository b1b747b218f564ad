"""What happens to a preempted group, and the speeds that 'auto' decides by."""

import pytest

from lullm.sched.preemption import PreemptionPolicy, Speeds


def policy(mode="auto", copy_bytes_per_s=1000.0, prefill_tokens_per_s=100.0):
    return PreemptionPolicy(mode, block_bytes=50, speeds=Speeds(copy_bytes_per_s, prefill_tokens_per_s))


def test_modes_are_obeyed_and_counted():
    recompute, swap = PreemptionPolicy(), PreemptionPolicy("swap", block_bytes=50)
    assert [recompute.choose(True, 10, 160), swap.choose(True, 10, 160)] == ["recompute", "swap"]
    assert recompute.counts == {("recompute", "mode"): 1} and swap.counts == {("swap", "mode"): 1}


@pytest.mark.parametrize("mode", ["swap", "auto"])
def test_without_room_on_the_host_it_is_recomputed(mode):
    chooser = policy(mode)
    assert chooser.choose(False, 1, 1000) == "recompute"
    assert chooser.counts == {("recompute", "host_pool_full"): 1}


@pytest.mark.parametrize(
    ("num_blocks", "num_tokens", "action"),
    [
        (10, 99, "recompute"),  # 2 * 10 * 50 / 1000 = 1 s to move, 0.99 s to recompute
        (10, 101, "swap"),
        (1, 16, "swap"),
        (1, 1, "recompute"),  # a block that is hardly filled moves as a whole
        (0, 0, "recompute"),
    ],
)
def test_auto_takes_what_is_cheaper(num_blocks, num_tokens, action):
    chooser = policy()
    assert chooser.choose(True, num_blocks, num_tokens) == action
    assert chooser.counts == {(action, "cheaper"): 1}


def test_observations_turn_the_choice():
    chooser = policy()
    assert chooser.choose(True, 10, 160) == "swap"
    for _ in range(20):
        chooser.speeds.observe_copy(num_blocks=10, block_bytes=50, seconds=5.0)
    assert chooser.speeds.copy_bytes_per_s == pytest.approx(100, rel=0.15)
    assert chooser.choose(True, 10, 160) == "recompute"
    for _ in range(20):
        chooser.speeds.observe_compute(num_tokens=64, seconds=64.0)
    assert chooser.speeds.prefill_tokens_per_s == pytest.approx(1, rel=1.5)
    assert chooser.choose(True, 10, 160) == "swap"


def test_the_first_steps_say_how_fast_prefill_is():
    chooser = PreemptionPolicy("auto", block_bytes=50, speeds=Speeds(1000.0))
    assert chooser.choose(True, 10, 1) == "swap", "no step was long enough to tell"
    chooser.speeds.observe_compute(num_tokens=64, seconds=6.4)  # slow: cold kernels, untouched pages
    assert chooser.speeds.prefill_tokens_per_s == pytest.approx(10)
    chooser.speeds.observe_compute(num_tokens=64, seconds=0.32)
    assert chooser.speeds.prefill_tokens_per_s == pytest.approx(105)
    for _ in range(10):
        chooser.speeds.observe_compute(num_tokens=64, seconds=0.32)
    assert chooser.speeds.prefill_tokens_per_s == pytest.approx(200, rel=0.05)
    assert [chooser.choose(True, 10, num_tokens) for num_tokens in (180, 220)] == ["recompute", "swap"]


def test_steps_that_say_nothing_are_not_observed():
    speeds = Speeds(1000.0, 100.0)
    speeds.observe_copy(num_blocks=1, block_bytes=50, seconds=9.0)
    speeds.observe_copy(num_blocks=8, block_bytes=50, seconds=0.0)
    speeds.observe_compute(num_tokens=4, seconds=9.0)
    speeds.observe_compute(num_tokens=64, seconds=0.0)
    assert speeds == Speeds(1000.0, 100.0)
