"""Beam search as pure bookkeeping over scores; the scheduler turns its decisions into forks and frees.

At every step each live beam offers its best next tokens. The best offers with an end token, or at the length limit,
become finished hypotheses, ranked by sum of log-probabilities / length ** length_penalty. The best other offers live
on. The decisions are those of transformers' `generate(num_beams=...)`.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lullm.types.draw import DrawParams
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.sequence import Hypothesis
from lullm.types.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Extension:
    """A beam of the next step: the beam that it extends, its new token, and its new sum."""

    parent: int
    token_id: int
    cumulative_logprob: float


@dataclass(slots=True)
class BeamSearch:
    """The state of one request's search.

    Args:
        max_output_len: tokens after which a hypothesis ends. end_token_ids: tokens that end it.
        suppressed_ids, begin_suppressed_ids: tokens that are never offered, or not as the first.
    """

    params: SamplingParams
    end_token_ids: Collection[int]
    max_output_len: int
    suppressed_ids: frozenset[int] = frozenset()
    begin_suppressed_ids: frozenset[int] = frozenset()
    hypotheses: list[Hypothesis] = field(default_factory=list)
    is_done: bool = False
    _can_improve: bool = True
    draw_params: DrawParams = field(init=False)

    def __post_init__(self) -> None:
        # The sampler returns the best tokens of every beam with their log-probabilities.
        self.draw_params = DrawParams(temperature=0.0, num_logprobs=self.num_candidates)

    @classmethod
    def of(cls, request: GenerateRequest, max_model_len: int) -> "BeamSearch":
        """The search that a request asks for. `max_model_len`: tokens of the longest sequence."""
        room = max_model_len - len(request.prompt_token_ids)
        most = min(request.params.max_tokens or room, room)
        suppressed = frozenset(request.rules.suppressed_ids), frozenset(request.rules.begin_suppressed_ids)
        return cls(request.params, request.end_token_ids, most, *suppressed)

    @property
    def can_improve(self) -> bool:
        """Whether live beams could still beat the worst hypothesis."""
        return self._can_improve

    def go_on(self, hypotheses: list[Hypothesis], can_improve: bool) -> None:
        """Take the state of a search that has begun elsewhere."""
        self.hypotheses, self._can_improve = hypotheses, can_improve

    @property
    def width(self) -> int:
        assert self.params.beam_width is not None
        return self.params.beam_width

    @property
    def num_candidates(self) -> int:
        """Offers that are compared, and wanted from each beam: enough for `width` of them to live on if any can."""
        num_suppressed = len(self.suppressed_ids | self.begin_suppressed_ids)
        return max(2, 1 + len(self.end_token_ids)) * self.width + num_suppressed

    def advance(self, beams: Sequence[tuple[list[int], float, TokenLogprobs]]) -> list[Extension]:
        """Take one step.

        Args:
            beams: the live beams: output tokens so far, sum of log-probabilities, and at least `num_candidates` of
                the best next tokens.

        Returns:
            The beams that live on, best first; none once `is_done`. `hypotheses` is then the answer, best first.
        """
        output_len = len(beams[0][0]) + 1
        hidden = self.suppressed_ids | (self.begin_suppressed_ids if output_len == 1 else frozenset())
        offers = sorted(
            (
                Extension(parent, token_id, total + logprob)
                for parent, (_, total, best) in enumerate(beams)
                for token_id, logprob, _ in best
                if token_id not in hidden
            ),
            key=lambda offer: -offer.cumulative_logprob,
        )[: self.num_candidates]
        at_limit = output_len >= self.max_output_len
        alive = [offer for offer in offers if not at_limit and offer.token_id not in self.end_token_ids][: self.width]
        if self._can_improve and not self._is_settled:
            # Only the best `width` offers may end a hypothesis; the others provide enough beams that live on.
            for offer in offers[: self.width]:
                if at_limit or offer.token_id in self.end_token_ids:
                    self._add(offer, beams[offer.parent][0], output_len)
        if alive:
            self._can_improve = self._can_improve and self._may_still_improve(alive[0], output_len)
        self.is_done = not alive or not self._can_improve or self._is_settled
        return [] if self.is_done else alive

    def cut_short(self, stop_reason: str, beams: Sequence[tuple[list[int], float]]) -> None:
        """End the search now: the live beams become hypotheses with this stop reason."""
        for token_ids, total in beams:
            if token_ids:
                score = total / math.pow(len(token_ids), self.params.length_penalty)
                self._insert(Hypothesis(list(token_ids), total, score, "length", stop_reason))
        self.is_done = True

    @property
    def _is_settled(self) -> bool:
        """With early stopping, as many hypotheses as beams are enough."""
        return self.params.early_stopping is True and len(self.hypotheses) == self.width

    def _add(self, offer: Extension, token_ids: list[int], output_len: int) -> None:
        reason: Literal["stop", "length"] = "stop" if offer.token_id in self.end_token_ids else "length"
        score = offer.cumulative_logprob / math.pow(output_len, self.params.length_penalty)
        self._insert(Hypothesis([*token_ids, offer.token_id], offer.cumulative_logprob, score, reason))

    def _insert(self, hypothesis: Hypothesis) -> None:
        self.hypotheses = sorted([*self.hypotheses, hypothesis], key=lambda h: -h.score)[: self.width]

    def _may_still_improve(self, best: Extension, output_len: int) -> bool:
        """Whether the best live beam could still beat the worst hypothesis, guessing its final length."""
        if len(self.hypotheses) < self.width:
            return True
        is_patient = self.params.early_stopping == "never" and self.params.length_penalty > 0
        length = self.max_output_len if is_patient else output_len
        return best.cumulative_logprob / math.pow(length, self.params.length_penalty) > self.hypotheses[-1].score
