"""SamplingParams: how the tokens of one request are chosen. Checked once, when it is built."""

import dataclasses
import enum
import math
import numbers
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lullm.errors import InvalidRequestError
from lullm.types.guided.params import StructuredOutputsParams
from lullm.types.vllm_argument import VLLM_SAMPLING, takes_vllms

MAX_N = 1024
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024
MAX_BAD_WORDS = 256


class OutputKind(enum.Enum):
    """The contents of each `RequestOutput`: everything so far, only the new part, or one output at the end."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final_only"


RequestOutputKind = OutputKind
"""vLLM's name."""


@dataclass(slots=True)
class SamplingParams:
    """Sampling parameters, with the names, the order and the meanings of vLLM's.

    A field may be changed; a request checks its own copy again.

    Args:
        n: completions to return. `best_of` (default n) are generated and the n with the highest mean log-probability
            per token are returned.
        temperature: 0 is greedy: the token with the highest logit, the lowest id among equals.
        top_p, top_k, min_p: nucleus, the k best (0 or -1: all), and a floor relative to the best token's probability;
            applied after the temperature, in the order top_k, top_p, min_p.
        presence_penalty, frequency_penalty: subtracted from the logits of tokens already generated, once or per
            occurrence.
        repetition_penalty: divides (positive) or multiplies (negative) the logits of tokens of the prompt or the
            output.
        seed: the same seed gives the same tokens in any batch; None and -1: random.
        stop: strings that end the text.
        stop_token_ids: tokens that end it.
        ignore_eos: go on after the model's own end.
        min_tokens: before so many tokens, end-of-sequence and stop tokens cannot be drawn, and stop strings do not
            count.
        max_tokens: most new tokens; None: up to the model's length.
        logprobs, prompt_logprobs: how many of the best log-probabilities to return per position, besides the chosen;
            -1: all, if the engine's `max_logprobs` allows it.
        truncate_prompt_tokens: keep so many last tokens of the prompt; -1: as many as fit before the output.
        logit_bias: token id -> number added to its logit.
        allowed_token_ids: no other tokens can be drawn.
        bad_words: strings that cannot be generated.
        thinking_token_budget: most tokens of the model's thoughts, which are then ended. None or -1: no limit. For
            conversations with models that think.
        structured_outputs: the form of the output, such as a JSON schema or a regular expression.
        detokenize: False: outputs have tokens and no texts, which takes less time.
        skip_reading_prefix_cache: compute the whole prompt; later requests may still find it. None: where
            `prompt_logprobs` needs that.
        timestamps: the output has the times of what is said, by Whisper's rules; for models that hear. `logprobs` are
            then of what these rules leave.
        beam_width: search with so many beams instead of drawing; the n best are returned.
        length_penalty: hypotheses are ranked by sum of log-probabilities / length ** length_penalty.
        early_stopping: True: end with `beam_width` finished hypotheses; False: when no better one is likely; 'never':
            when no better one is possible.

    Raises:
        InvalidRequestError: a value is out of range; `.param` names the field.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] | list[str] | str | None = None
    stop_token_ids: tuple[int, ...] | list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    bad_words: tuple[str, ...] | list[str] | None = None
    best_of: int | None = None
    beam_width: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    thinking_token_budget: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    detokenize: bool = True
    skip_reading_prefix_cache: bool | None = None
    timestamps: bool = False
    output_kind: OutputKind = OutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        self._check_texts_and_ids()
        self._check_numbers()
        if self.logit_bias is not None:
            self.logit_bias = _logit_bias(self.logit_bias)
        self._check_beams()
        if not isinstance(self.output_kind, OutputKind):
            raise InvalidRequestError(f"output_kind must be an OutputKind, not {self.output_kind!r}", "output_kind")

    def _check_texts_and_ids(self) -> None:
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise InvalidRequestError(
                f"structured_outputs must be StructuredOutputsParams, not {type(self.structured_outputs).__name__}",
                "structured_outputs",
            )
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self.stop = _strings("stop", stop, MAX_STOP_STRINGS)
        self.bad_words = _strings("bad_words", self.bad_words, MAX_BAD_WORDS)
        self.stop_token_ids = _token_ids("stop_token_ids", self.stop_token_ids)
        if self.allowed_token_ids is not None:
            ids = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not ids:
                raise InvalidRequestError("allowed_token_ids must not be empty", "allowed_token_ids")
            self.allowed_token_ids = ids
            if self.structured_outputs is not None:  # together they may leave no token at all
                raise InvalidRequestError(
                    "allowed_token_ids and structured_outputs both say which tokens may come; give one of them",
                    "allowed_token_ids",
                )

    def _check_numbers(self) -> None:
        for (name, check, low, high), value in zip(_NUMBERS, _numbers_of(self), strict=True):
            if value is not _DEFAULTS[name]:
                setattr(self, name, check(name, value, low, high))
        for name, value in zip(_BOOLS, _bools_of(self), strict=True):
            if not isinstance(value, bool) and (name, value) != _NO_CHOICE:
                raise InvalidRequestError(f"{name} must be true or false, not {value!r}", name)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings are looked for in the text, so they need detokenize=True", "stop")
        for name in ("seed", "thinking_token_budget"):
            if getattr(self, name) == -1:
                setattr(self, name, None)
        if self.top_p == 0.0:
            raise InvalidRequestError("top_p must be in (0, 1]", "top_p")
        if self.truncate_prompt_tokens == 0:
            raise InvalidRequestError("truncate_prompt_tokens must be at least 1, or -1", "truncate_prompt_tokens")
        if self.repetition_penalty == 0.0:
            raise InvalidRequestError("repetition_penalty must be above 0", "repetition_penalty")
        if self.best_of is not None and self.best_of < self.n:
            raise InvalidRequestError(f"best_of ({self.best_of}) must be at least n ({self.n})", "best_of")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({self.min_tokens}) must not be above max_tokens ({self.max_tokens})", "min_tokens"
            )

    def _check_beams(self) -> None:
        if self.early_stopping not in (True, False, "never"):
            raise InvalidRequestError(
                f"early_stopping must be true, false or 'never', not {self.early_stopping!r}", "early_stopping"
            )
        if self.beam_width is None:
            for name in ("length_penalty", "early_stopping"):
                if getattr(self, name) != _DEFAULTS[name]:
                    raise InvalidRequestError(f"{name} belongs to beam search; set beam_width too", name)
            return
        if self.n > self.beam_width:
            raise InvalidRequestError(f"n ({self.n}) must not be above beam_width ({self.beam_width})", "n")
        if self.temperature not in (0.0, 1.0):
            raise InvalidRequestError("beam search does not draw: leave temperature out", "temperature")
        for name in _NOT_WITH_BEAMS:
            if getattr(self, name) != _DEFAULTS[name]:
                raise InvalidRequestError(f"{name} has no meaning in beam search; leave it out", name)

    @property
    def num_sequences(self) -> int:
        """Sequences to generate: the beams, best_of, or n."""
        return self.beam_width or self.best_of or self.n

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken every time."""
        return self.temperature == 0.0

    @property
    def needs_logprobs(self) -> bool:
        """Whether the chosen tokens' log-probabilities are needed: asked for, or to rank `best_of`."""
        return self.logprobs is not None or self.num_sequences > self.n

    def replace(self, **changes: Any) -> "SamplingParams":
        """A copy with some fields changed, checked like a new one."""
        return type(self)(**dict(zip(_NAMES, _values_of(self), strict=True), **changes))

    def clone(self) -> "SamplingParams":
        """A copy, checked like a new one."""
        return type(self)(*_values_of(self))


# Wraps the dataclass's `__init__`, since vLLM's other arguments are not fields.
SamplingParams.__init__ = takes_vllms(VLLM_SAMPLING)(SamplingParams.__init__)  # type: ignore[method-assign]

_NAMES = tuple(field.name for field in dataclasses.fields(SamplingParams))
_values_of = operator.attrgetter(*_NAMES)
"""All values at once: two checked copies of a request's parameters took a tenth of a server's time for it."""
_UNBOUNDED = 2**63 - 1
"""Larger integers become this one: no length is near it, and neither messages nor histograms take more."""
_INT_RANGES: tuple[tuple[str, int, int | None], ...] = (
    ("n", 1, MAX_N),
    ("best_of", 1, MAX_N),
    ("beam_width", 1, MAX_N),
    ("top_k", -1, None),
    ("seed", -(2**63), 2**64 - 1),
    ("min_tokens", 0, None),
    ("max_tokens", 1, None),
    ("logprobs", -1, None),
    ("prompt_logprobs", -1, None),
    ("thinking_token_budget", -1, None),
    ("truncate_prompt_tokens", -1, None),
)
_BOOLS = (
    "ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "detokenize", "skip_reading_prefix_cache",
    "timestamps",
)  # fmt: skip
_bools_of = operator.attrgetter(*_BOOLS)
_NO_CHOICE = ("skip_reading_prefix_cache", None)
_OPTIONAL = (
    "best_of", "beam_width", "seed", "max_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens",
    "thinking_token_budget",
)  # fmt: skip
_FLOAT_RANGES = (
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.0, math.inf),
    ("temperature", 0.0, math.inf),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("length_penalty", -10.0, 10.0),
)
_NOT_WITH_BEAMS = (
    "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "top_p", "top_k", "min_p", "seed", "stop",
    "stop_token_ids", "min_tokens", "logprobs", "logit_bias", "allowed_token_ids", "bad_words", "structured_outputs",
    "thinking_token_budget",
)  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    f.name: () if f.name in ("stop", "stop_token_ids", "bad_words") else f.default
    for f in dataclasses.fields(SamplingParams)
}


def integers(value: Any) -> list[int] | None:
    """A list, a tuple or an array (numpy's, torch's) of integers, as a list; None: something else."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, (list, tuple)):
        return None
    if set(map(type, value)) <= {int}:
        return list(value)
    if not all(isinstance(item, numbers.Integral) and not isinstance(item, bool) for item in value):
        return None
    return [int(item) for item in value]


def _check_int(name: str, value: Any, low: int, high: int | None) -> int | None:
    if value is None and name in _OPTIONAL:
        return None
    if type(value) is not int and (not isinstance(value, numbers.Integral) or isinstance(value, bool)):  # numpy's, too
        raise InvalidRequestError(f"{name} must be an integer, not {value!r}", name)
    number = int(value)
    if number < low or (high is not None and number > high):
        bound = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidRequestError(f"{name} must be {bound}, got {_shown(number)}", name)
    return min(number, _UNBOUNDED) if high is None else number


def _shown(number: float) -> str:
    """The number; but Python writes no integer of more than 4300 digits."""
    return str(number) if abs(number) <= sys.float_info.max else "a number too large for it"


def _check_float(name: str, value: Any, low: float, high: float) -> float:
    if type(value) is not float and (not isinstance(value, numbers.Real) or isinstance(value, bool)):
        raise InvalidRequestError(f"{name} must be a number, not {value!r}", name)
    number = value if isinstance(value, int) else float(value)  # an int may be larger than any float
    if not low <= number <= high or number > sys.float_info.max:
        bound = f"a finite number of at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise InvalidRequestError(f"{name} must be {bound}, got {_shown(number)}", name)
    return float(number)


_NUMBERS: tuple[tuple[str, Callable[[str, Any, Any, Any], Any], Any, Any], ...] = (
    *((name, _check_int, least, most) for name, least, most in _INT_RANGES),
    *((name, _check_float, low, high) for name, low, high in _FLOAT_RANGES),
)
_numbers_of = operator.attrgetter(*(name for name, *_ in _NUMBERS))


def _strings(name: str, value: Any, max_num: int) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(s, str) for s in value):
        raise InvalidRequestError(f"{name} must be a list of strings", name)
    if len(value) > max_num:
        raise InvalidRequestError(f"{name} may hold at most {max_num} strings, got {len(value)}", name)
    for s in value:
        if not s or len(s) > MAX_STOP_STRING_CHARS:
            raise InvalidRequestError(
                f"each string of {name} must have 1 to {MAX_STOP_STRING_CHARS} characters, one has {len(s)}", name
            )
    return tuple(value)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = integers(value)
    if ids is None:
        raise InvalidRequestError(f"{name} must be a list of token ids", name)
    return tuple(dict.fromkeys(ids))


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise InvalidRequestError("logit_bias must map token ids to numbers", "logit_bias")
    ids: list[int] = []
    try:
        ids += map(int, value)
    except (TypeError, ValueError, OverflowError):
        wrong = list(value)[len(ids)]
        raise InvalidRequestError(f"logit_bias: {wrong!r} is not a token id", "logit_bias") from None
    values = list(value.values())
    # Checked together: a body has room for 200,000 of them, and single checks took 0.3 s.
    if not set(map(type, values)) <= {int, float} or not all(-100.0 <= number <= 100.0 for number in values):
        values = [_check_float("logit_bias", number, -100.0, 100.0) for number in values]
    return dict(zip(ids, map(float, values), strict=True))
