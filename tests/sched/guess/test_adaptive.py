"""As many guesses as pay: over made-up devices, whose seconds are a function of rows and turns."""

import random
from collections.abc import Callable

import pytest

from lullm.sched.guess.adaptive import AdaptiveGuesses
from lullm.types.draw import Draw, DrawParams
from lullm.types.packed import pack
from lullm.types.sequence import Sequence
from lullm.types.step import GUESSED_TOKEN, Span, StepPlan, StepResult


class Guesser:
    """Guesses whatever it is asked for; counts the tokens that a model of it would see late."""

    is_active = True
    num_quiet_steps = 0

    def __init__(self, has_model: bool):
        self.has_model = has_model
        self.seen: dict[Sequence, int] = {}
        self.behind: dict[Sequence, int] = {}  # before the last guess
        self.num_seen = 0

    def begin(self, seqs) -> None:
        pass

    def num_behind(self, seq: Sequence) -> int:
        return len(seq) - self.seen.get(seq, 0) if self.has_model else 0

    def propose(self, seq: Sequence, most: int) -> list[int]:
        self.behind[seq] = self.num_behind(seq)
        self.num_seen += self.behind[seq]
        self.seen[seq] = len(seq)
        return [GUESSED_TOKEN] * most

    def take_spans(self) -> list[Span]:
        return []

    def learn(self, seq: Sequence, num: int, num_right: int) -> None:
        self.seen[seq] = len(seq) + min(num_right, num - 1)

    def forget(self, seq: Sequence) -> None:
        pass

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        pass


class Device:
    """`step_s` of rows and `turn_s` of a draft model's rows, of which a token of a prompt takes a tenth.

    Guesses are right with `rates`, by sequence.
    """

    def __init__(self, rates, step_s: Callable[[int], float], turn_s: Callable[[int], float] | None, most: int = 4):
        self.seqs = [Sequence(i, 0, [0] * 20, 10, draw_params=DrawParams()) for i in range(len(rates))]
        self.rates, self.step_s, self.turn_s = list(rates), step_s, turn_s
        self.guesser = Guesser(turn_s is not None)
        self.guesses = AdaptiveGuesses(self.guesser, most, turn_s is not None)
        self.random = random.Random(0)
        self.numbers: list[list[int]] = []

    def run(self, num_steps: int) -> float:
        """Tokens per second."""
        tokens, seconds = 0, 0.0
        for _ in range(num_steps):
            self.guesses.begin(self.seqs)
            nums = [len(self.guesses.propose(seq, 9)) if self.guesses.is_active else 0 for seq in self.seqs]
            self.numbers.append(nums)
            num_rows, num_turns = len(nums) + sum(nums), max(nums)
            noise = 1 + 0.1 * self.random.random()
            compute_s = self.step_s(num_rows) * noise
            behind = [self.guesser.behind[s] for s, num in zip(self.seqs, nums, strict=True) if num and self.turn_s]
            draft_s = 0.0
            if self.turn_s and num_turns:
                draft_s = num_turns * self.turn_s(len(behind)) * noise
                draft_s += sum(num for num in behind if num > 2) * self.turn_s(1) / 10
            draw = Draw(0, 0, DrawParams())
            spans = [
                Span(seq.seq_id, 0, pack([0]), (b"",), (draw,))
                for seq, num in zip(self.seqs, nums, strict=True)
                for _ in range(num + 1)
            ]
            drafts = [
                Span(number, 0, pack([0] * (num if num > 2 else 1)), (b"",), (draw,))
                for number, num in enumerate(behind)
            ]
            plan = StepPlan(spans, draft_spans=drafts)
            guessed = pack([0] * sum(nums)) if self.turn_s else b""
            self.guesses.observe(plan, StepResult([], compute_s=compute_s, guesses=guessed, draft_s=draft_s))
            for seq, num, rate in zip(self.seqs, nums, self.rates, strict=True):
                num_right = 0
                while num_right < num and self.random.random() < rate:
                    num_right += 1
                if num:
                    self.guesses.learn(seq, num, num_right)
                seq.token_ids += [0] * (num_right + 1)
                tokens += num_right + 1
            seconds += compute_s + draft_s
        return tokens / seconds


def plain(step_s: Callable[[int], float], num_seqs: int) -> float:
    return num_seqs / (step_s(num_seqs) * 1.05)


def memory_bound(num_rows: int) -> float:
    """A step that mostly waits for its weights."""
    return 0.040 + 0.0005 * num_rows


def compute_bound(num_rows: int) -> float:
    """Every row has its price."""
    return 0.004 + 0.005 * num_rows


def test_right_guesses_of_a_small_model_are_all_made():
    device = Device([0.9], memory_bound, lambda rows: 0.004)
    assert device.run(300) > 2.5 * plain(memory_bound, 1)
    assert sum(map(sum, device.numbers[50:])) > 3.5 * 250


@pytest.mark.parametrize("num_seqs", [1, 8])
def test_a_model_of_the_same_size_is_turned_off(num_seqs):
    device = Device([1.0] * num_seqs, compute_bound, compute_bound)
    device.run(64)
    assert device.run(1000) > 0.98 * plain(compute_bound, num_seqs)
    assert sum(map(sum, device.numbers[64:])) < 20 * num_seqs
    assert device.guesses.num_quiet_steps > 1000
    num_tokens = sum(len(seq) for seq in device.seqs)
    assert device.guesser.num_seen < 0.2 * num_tokens, "a trial does not make it see all that it has missed"


@pytest.mark.parametrize("turn_s", [None, lambda rows: 0.004])
def test_wrong_guesses_cost_nearly_nothing(turn_s):
    device = Device([0.0] * 4, compute_bound, turn_s)
    device.run(64)
    assert device.run(2000) > 0.97 * plain(compute_bound, 4)


def test_sequences_of_which_guesses_are_right_have_them():
    device = Device([0.9, 0.9, 0.0, 0.0], lambda rows: 0.020 + 0.003 * rows, None)
    device.run(200)
    nums = [sum(column) for column in zip(*device.numbers[100:], strict=True)]
    assert min(nums[:2]) > 4 * max(nums[2:])


def test_the_number_follows_what_rows_cost():
    """With cheap rows four guesses, with dear ones fewer: 0.6 + 0.36 + ... is soon less than a row's price."""
    found = []
    for row_s in (0.0005, 0.006, 0.03):
        device = Device([0.6], lambda rows, row_s=row_s: 0.040 + row_s * rows, None)
        device.run(400)
        used = [nums[0] for nums in device.numbers[200:]]
        found.append(sum(used) / len(used))
    assert found[0] > 3.5 and found[0] > found[1] + 0.5 and found[2] < 1.0


def test_guesses_that_become_right_are_found():
    device = Device([0.0] * 2, memory_bound, lambda rows: 0.004)
    device.run(500)
    before = len(device.numbers)
    device.rates = [0.95] * 2
    device.run(3000)
    assert sum(map(sum, device.numbers[-200:])) > 3 * 2 * 200 * 0.8
    first = next(i for i, nums in enumerate(device.numbers[before:]) if min(nums) > 1)
    assert first < 2100, "two of the longest waits"


def test_a_device_that_becomes_dear_is_noticed():
    """What a step without guesses takes is measured again while there are guesses."""
    device = Device([0.8] * 2, memory_bound, None)
    device.run(300)
    assert sum(map(sum, device.numbers[-100:])) > 600
    device.step_s = compute_bound
    device.run(600)
    assert device.run(500) > 0.95 * plain(compute_bound, 2)


def test_sequences_that_cannot_be_guessed_are_left_alone():
    device = Device([1.0, 1.0], memory_bound, None)
    device.seqs[0].draw_params = None
    device.guesses.begin(device.seqs)
    assert not device.guesses.propose(device.seqs[0], 4) and device.guesses.propose(device.seqs[1], 4)
