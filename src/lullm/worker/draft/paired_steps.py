"""PairedSteps: runs steps in which a draft model guesses tokens, and the model verifies them.

In a step the draft model first sees the tokens that it has not seen (`StepPlan.draft_spans`), which gives the first
guess of each sequence. Then it sees each guess to give the next one: a turn for each. The model computes all guesses at
once, as if they were given.

The draft model draws a guess as the model will draw the token: by the same parameters, with the same noise
(`sampling.race`). So drawn guesses are right about as often as greedy ones.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from lullm.types.draw import Draw, DrawParams
from lullm.types.packed import pack, pack_one
from lullm.types.step import GUESSED_TOKEN, DrawnToken, Running, Span, StepPlan, StepResult


class Launcher(Protocol):
    """Runs the steps of one model: a `ModelRunner`."""

    def launch(self, plan: StepPlan) -> Running[StepResult]: ...


@dataclass(frozen=True, slots=True)
class _Chain:
    """The guesses of a sequence in a step: its spans of GUESSED_TOKEN, and the tokens so far."""

    spans: list[Span]
    params: DrawParams
    token_ids: list[int]


class PairedSteps:
    """Steps of two models over the same blocks, each with its own keys and values in them.

    Args:
        cache: the number of the model's cache group whose tables the draft model uses.
        is_accelerator: work runs beside the host; then `launch` waits for the guesses.
    """

    def __init__(self, runner: Launcher, draft: Launcher, cache: int, is_accelerator: bool):
        self._runner = runner
        self._draft = draft
        self._cache = cache
        self._is_accelerator = is_accelerator

    def launch(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step. See `ModelRunner.launch`."""
        if not (plan.draft_spans or plan.blocks_to_swap_out or plan.blocks_to_swap_in or plan.blocks_to_copy):
            return self._runner.launch(plan)
        if self._is_accelerator:
            guessed = self._guess(plan)
            running = self._runner.launch(guessed.plan)
            return _PairedStep(lambda: (guessed, running))
        return _PairedStep(lambda: self._launched(self._guess(plan)))

    def _launched(self, guessed: "_Guessed") -> "tuple[_Guessed, Running[StepResult]]":
        return guessed, self._runner.launch(guessed.plan)

    def _guess(self, plan: StepPlan) -> "_Guessed":
        """Let the draft model move its blocks and make all guesses. Blocks for their tokens."""
        started = time.perf_counter()
        moves = plan.blocks_to_swap_out, plan.blocks_to_swap_in, plan.blocks_to_copy
        result = self._draft.launch(StepPlan(plan.draft_spans, *moves)).result()
        chains = _chains(plan)
        self._take(chains, result.tokens)
        turn = 1
        while spans := [span for chain in chains.values() if (span := self._next_span(chain, turn)) is not None]:
            self._take(chains, self._draft.launch(StepPlan(spans)).result().tokens)
            turn += 1
        guesses = [token_id for chain in chains.values() for token_id in chain.token_ids]
        seconds = time.perf_counter() - started - result.swap_s
        return _Guessed(_filled(plan, guesses), guesses, seconds, result.swap_s)

    def _take(self, chains: dict[int, _Chain], tokens: list[DrawnToken]) -> None:
        """Add a guess to each chain that a token was drawn for: the last, if there are several."""
        newest = {token.seq_id: token.token_id for token in tokens}
        for seq_id, token_id in newest.items():
            if (chain := chains.get(seq_id)) is not None:
                chain.token_ids.append(max(token_id, 0))  # NO_TOKEN is no input

    def _next_span(self, chain: _Chain, turn: int) -> Span | None:
        """The span from which the draft model guesses the chain's next token in this turn; None: the chain has all."""
        if turn >= len(chain.spans):
            return None
        seen = chain.spans[turn - 1]
        draw = Draw(seen.seq_id, 0, chain.params, seen.draws[0].output_len)
        return Span(seen.seq_id, seen.start, pack_one(chain.token_ids[-1]), (seen.block_ids[self._cache],), (draw,))


@dataclass(frozen=True, slots=True)
class _Guessed:
    """A plan with guesses in it."""

    plan: StepPlan
    token_ids: list[int]
    seconds: float
    swap_s: float


@dataclass(frozen=True, slots=True)
class _PairedStep:
    """A step that was launched. `parts`: waits for the guesses; gives them, and the model's part of the step."""

    parts: Callable[[], tuple[_Guessed, Running[StepResult]]]

    def result(self) -> StepResult:
        guessed, running = self.parts()
        result = running.result()
        return msgspec.structs.replace(
            result, guesses=pack(guessed.token_ids), draft_s=guessed.seconds, swap_s=result.swap_s + guessed.swap_s
        )


def _is_guessed(span: Span) -> bool:
    return span.token_ids == _GUESSED


_GUESSED = pack([GUESSED_TOKEN])


def _chains(plan: StepPlan) -> dict[int, _Chain]:
    """By sequence, in the order of the plan. The parameters are those of the sequence's draft spans."""
    params = {span.seq_id: span.draws[-1].params for span in plan.draft_spans if span.draws}
    chains: dict[int, _Chain] = {}
    for span in plan.spans:
        if _is_guessed(span):
            chains.setdefault(span.seq_id, _Chain([], params[span.seq_id], [])).spans.append(span)
    return chains


def _filled(plan: StepPlan, guesses: list[int]) -> StepPlan:
    """The plan with these guesses in the places of its GUESSED_TOKENs, for a model alone."""
    left = iter(guesses)
    spans = [
        msgspec.structs.replace(span, token_ids=pack_one(next(left))) if _is_guessed(span) else span
        for span in plan.spans
    ]
    return msgspec.structs.replace(plan, spans=spans, draft_spans=[])
