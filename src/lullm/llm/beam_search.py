"""Beam search under vLLM's names: `BeamSearchParams` in, `BeamSearchOutput` out. `SamplingParams` has more options."""

from collections.abc import Callable
from dataclasses import dataclass

from lullm.errors import InvalidRequestError
from lullm.types.outputs import RequestOutput
from lullm.types.sampling_params import SamplingParams


@dataclass(slots=True)
class BeamSearchParams:
    """Options of a search. They are checked when they are used; errors as from `SamplingParams`: InvalidRequestError.

    Args:
        beam_width: number of hypotheses that are kept and returned.
        max_tokens: length of the longest hypothesis.
        temperature: 0 or 1; a search draws nothing.
        length_penalty: hypotheses are ranked by sum of log-probabilities / length ** length_penalty.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    @property
    def sampling_params(self) -> SamplingParams:
        """The same options as `SamplingParams`."""
        return SamplingParams(
            n=self.beam_width,
            beam_width=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            length_penalty=self.length_penalty,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
        )


def checked_width(beam_width: int | None) -> int:
    """Return the width. Raises InvalidRequestError: it is None or below 1."""
    if beam_width is None:
        raise InvalidRequestError("beam_search needs a beam_width or BeamSearchParams", "beam_width")
    if isinstance(beam_width, int) and beam_width < 1:
        raise InvalidRequestError(f"beam_width must be at least 1, got {beam_width}", "beam_width")
    return beam_width


@dataclass(slots=True)
class BeamSearchSequence:
    """One hypothesis. `tokens` and `text` include the prompt, `cum_logprob` does not."""

    tokens: list[int]
    text: str
    cum_logprob: float
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(slots=True)
class BeamSearchOutput:
    """The hypotheses of one prompt, best first."""

    sequences: list[BeamSearchSequence]


def beam_search_output(output: RequestOutput, decode: Callable[[list[int]], str]) -> BeamSearchOutput:
    """Convert the engine's output of a search to vLLM's. `decode`: ids to text."""
    sequences = []
    for completion in output.outputs:
        tokens = [*output.prompt_token_ids, *completion.token_ids]
        assert completion.cumulative_logprob is not None  # beams are ranked by it
        sequences.append(
            BeamSearchSequence(
                tokens, decode(tokens), completion.cumulative_logprob, completion.finish_reason, completion.stop_reason
            )
        )
    return BeamSearchOutput(sequences)
