"""The fuzz targets for a moment each, and the campaign that runs them for hours."""

import random

import pytest
import torch

from .campaign import Campaign, main
from .http_client import check_answer, final_answer
from .target import Target
from .targets import TARGETS

ROUNDS = {"engine": 4, "gpu": 1, "server": 2, "folder": 15, "scheduler": 3, "op": 40, "template": 30}


def opened(name, folder):
    if name == "gpu":
        pytest.importorskip("triton")
        if torch.cuda.is_available():
            pytest.skip("a GPU is here: kernels are not interpreted")
    return TARGETS[name](folder)


@pytest.mark.parametrize("name", TARGETS)
def test_some_rounds_pass(name, tmp_path):
    target, said = opened(name, tmp_path), []
    if name == "gpu":
        target.num_actions = 30  # half of a round, which takes 15 s
    try:
        assert Campaign(name, said.append).run(target, seed=1, seconds=120, rounds=ROUNDS[name]), "\n".join(said)
    finally:
        target.close()
    assert target.counts.total() > 0


@pytest.mark.slow
def test_a_thousand_steps_on_a_gpu_that_is_made_up(tmp_path):
    target, said, seed = opened("gpu", tmp_path), [], 100
    try:
        while target.counts["steps"] < 1000:
            assert Campaign("gpu", said.append).run(target, seed, seconds=600, rounds=1), "\n".join(said)
            seed += 1
    finally:
        target.close()
    assert all(target.counts[what] for what in ("preempted", "sleeps", "updates", "compared", "replays"))


@pytest.mark.parametrize("interim", [0, 1, 2])
def test_an_interim_answer_is_skipped(interim):
    raw = b"HTTP/1.1 100 Continue\r\n\r\n" * interim + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab"
    assert check_answer(final_answer(raw)) == (200, "ab")
    assert final_answer(raw[: 25 * interim]) == b""  # the connection ended behind it


class FifthFails(Target):
    """Fails at a number that the seed alone determines."""

    found: list[float] = []

    def round(self, rng: random.Random) -> None:
        self.found.append(rng.random())
        assert self.found[-1] != random.Random(14).random()


def test_a_failure_names_the_seed_that_replays_it(tmp_path):
    said = []
    campaign = Campaign("fifth", said.append)
    assert not campaign.run(FifthFails(tmp_path), seed=10, seconds=60)
    assert campaign.failure == 14 and campaign.num_rounds == 4
    assert said[-1] == "fifth: FAILED; replay: make fuzz TARGET=fifth SEED=14 ROUNDS=1"
    again = Campaign("fifth", said.append)
    assert not again.run(FifthFails(tmp_path), seed=14, seconds=60, rounds=1) and again.num_rounds == 0


def test_growth_is_a_failure(tmp_path):
    class Grows(FifthFails):
        def round(self, rng: random.Random) -> None:
            self.counts["rounds"] += 1

        def resident_bytes(self) -> int:
            return self.counts["rounds"] << 22

    assert not Campaign("grows", lambda _: None).run(Grows(tmp_path), seed=0, seconds=0.2)
    assert Campaign("grows", lambda _: None).run(Grows(tmp_path), seed=0, seconds=60, rounds=20)


def test_the_command_line(capsys, monkeypatch):
    monkeypatch.setitem(TARGETS, "op", FifthFails)
    assert main(["--target", "op", "--seed", "3", "--rounds", "2"]) == 0
    assert "op: seed 3" in capsys.readouterr().out
    assert main(["--target", "op", "--seed", "14", "--rounds", "1"]) == 1
