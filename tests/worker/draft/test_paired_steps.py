"""Steps of two models: who computes what, in which order. Both are made up: a token is followed by the next number."""

import pytest

from lullm.types.draw import Draw, DrawParams
from lullm.types.packed import pack, unpack
from lullm.types.step import GUESSED_TOKEN, NO_TOKEN, DrawnToken, Span, StepPlan, StepResult
from lullm.worker.draft.paired_steps import PairedSteps

PARAMS, GUESSING = DrawParams(seed=3, num_logprobs=1), DrawParams(seed=3)


class Counting:
    """Draws the number behind the last token of each span; keeps the plans."""

    def __init__(self, log: list[str], name: str, missing: int | None = None):
        self.plans: list[StepPlan] = []
        self._log, self._name, self._missing = log, name, missing

    def launch(self, plan: StepPlan) -> "Counting":
        self._log.append(f"{self._name} launched")
        self.plans.append(plan)
        return self

    def result(self) -> StepResult:
        self._log.append(self._name)
        tokens = []
        for span in self.plans[-1].spans:
            last = unpack(span.token_ids)[-1]
            drawn = NO_TOKEN if last == self._missing else last + 1
            tokens += [DrawnToken(draw.seq_id, drawn) for draw in span.draws]
        return StepResult(tokens, swap_s=1e-6, compute_s=2.0)


def span(seq_id: int, start: int, tokens: list[int], block: int = 7, params: DrawParams | None = PARAMS) -> Span:
    draws = () if params is None else (Draw(seq_id, len(tokens) - 1, params, start + len(tokens) - 2),)
    return Span(seq_id, start, pack(tokens), (pack([0]), pack([block])), draws)


def own(seq_id: int, start: int, tokens: list[int], params: DrawParams | None = GUESSING) -> Span:
    return Span(seq_id, start, pack(tokens), (pack([7]),), span(seq_id, start, tokens, params=params).draws)


PLAN = StepPlan(
    [
        span(1, 4, [10]),
        span(1, 5, [GUESSED_TOKEN]),
        span(1, 6, [GUESSED_TOKEN], block=8),
        span(2, 0, [1, 2, 3], params=None),
        span(3, 9, [20]),
        span(3, 10, [GUESSED_TOKEN]),
    ],
    blocks_to_copy=[(1, 2)],
    draft_spans=[own(1, 0, [0, 0, 0, 0, 10]), own(3, 8, [19]), own(3, 9, [20]), own(4, 0, [5, 5], None)],
)


@pytest.mark.parametrize("is_accelerator", [False, True])
def test_guesses_are_made_then_verified(is_accelerator):
    log: list[str] = []
    model, draft = Counting(log, "model"), Counting(log, "draft")
    running = PairedSteps(model, draft, 1, is_accelerator).launch(PLAN)
    assert log == (["draft launched", "draft"] * 2 + ["model launched"] if is_accelerator else [])
    result = running.result()
    assert log == ["draft launched", "draft"] * 2 + ["model launched", "model"]
    first, second = draft.plans
    assert first.spans == PLAN.draft_spans and first.blocks_to_copy == PLAN.blocks_to_copy
    [turn] = second.spans  # the first guess of sequence 1 is seen in its place, and drawn from as the model will
    assert (turn.seq_id, turn.start, unpack(turn.token_ids)) == (1, 5, [11])
    assert turn.block_ids == (pack([7]),) and turn.draws == (Draw(1, 0, GUESSING, 4),)
    [verified] = model.plans
    assert [unpack(each.token_ids) for each in verified.spans] == [[10], [11], [12], [1, 2, 3], [20], [21]]
    assert verified.blocks_to_copy == PLAN.blocks_to_copy and not verified.draft_spans
    assert unpack(result.guesses) == [11, 12, 21]
    assert (result.swap_s, result.compute_s) == (2e-6, 2.0) and 0 < result.draft_s < 1


def test_the_model_runs_alone_where_nothing_is_guessed_or_moved():
    log: list[str] = []
    model, draft = Counting(log, "model"), Counting(log, "draft")
    steps = PairedSteps(model, draft, 1, is_accelerator=False)
    plain = StepPlan([span(1, 4, [10])])
    assert steps.launch(plain).result().guesses == b"" and model.plans == [plain] and not draft.plans
    moves = StepPlan([], blocks_to_swap_out=[(1, 2)])
    steps.launch(moves).result()
    assert draft.plans == [moves] and model.plans[-1] == moves, "its keys and values go along"


def test_a_draft_model_that_breaks_guesses_some_token():
    log: list[str] = []
    steps = PairedSteps(Counting(log, "model"), Counting(log, "draft", missing=10), 1, is_accelerator=False)
    assert unpack(steps.launch(PLAN).result().guesses) == [0, 1, 21]
