"""`speculative_config`: how the next tokens are guessed, with vLLM's keys.

{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
{"method": "suffix"}
{"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}
"""

from dataclasses import dataclass
from typing import Any, Literal

from lullm.config.json_file import option_object
from lullm.errors import ConfigError, UnsupportedError

Method = Literal["ngram", "suffix", "draft_model"]

MOST_TOKENS = 1024
_DEPTH = 24
_LOOKUP = ("prompt_lookup_max", "prompt_lookup_min")
_SUFFIX = (
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
)
_OF_MODEL = ("model", "revision", "quantization", "max_model_len", "draft_tensor_parallel_size")
_OF_ALL = ("num_speculative_tokens", "adaptive")
_KEYS: dict[str, tuple[str, ...]] = {"ngram": _LOOKUP, "suffix": _SUFFIX, "draft_model": _OF_MODEL}
_INTEGERS: dict[str, tuple[int, int | None]] = {
    "num_speculative_tokens": (1, MOST_TOKENS),
    "max_model_len": (1, None),
    "draft_tensor_parallel_size": (1, None),
    **dict.fromkeys(_LOOKUP, (1, MOST_TOKENS)),
    "suffix_decoding_max_tree_depth": (2, MOST_TOKENS),
    "suffix_decoding_max_cached_requests": (0, None),
}
"""The least and the most value; None: any."""
_NUMBERS = {"suffix_decoding_max_spec_factor": float(MOST_TOKENS), "suffix_decoding_min_token_prob": 1.0}
"""The most; the least is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Up to `num_speculative_tokens` tokens are guessed: those behind an earlier place of the last few tokens, of
    `prompt_lookup_min` to `prompt_lookup_max` ones ('ngram'); those behind the longest ending of the text that stands
    in it or in past answers ('suffix'); or those that a smaller model draws ('draft_model').

    `adaptive`: fewer, or none, where they cost more than they give; None: not said. Of 'suffix': endings of at most
    `..._max_tree_depth` tokens, guesses for each of these (`..._max_spec_factor`), the share of the places that a guess
    needs, and how many past answers are kept. `model`: of the drafts, with its
    `revision`, its `quantization` (None: what its checkpoint says), and the longest sequence that it sees (None: what
    it can).
    """

    num_speculative_tokens: int
    method: Method = "ngram"
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 1
    suffix_decoding_max_tree_depth: int = _DEPTH
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    adaptive: bool | None = None
    model: str = ""
    revision: str | None = None
    quantization: Literal[None, "int8", "int4"] = None
    max_model_len: int | None = None
    draft_tensor_parallel_size: int | None = None


def parse_speculation(text: str | None) -> Speculation | None:
    """The value of `speculative_config`; None: nothing is guessed.

    Bounds that are left out are 5, as in vLLM, or equal to the other one. 'suffix' has vLLM's values, too, and as many
    guesses as an ending may be long. A `model` without a `method` drafts.

    Raises:
        ConfigError: no such object, or a value is missing or out of range.
        UnsupportedError: another method.
    """
    data = option_object("speculative_config", text)
    if not data:
        return None
    given = dict(data)
    method = given.pop("method", None) or ("draft_model" if given.get("model") else None)
    if not isinstance(method, str) or method not in _KEYS:
        raise UnsupportedError(
            f'speculative_config: method is "ngram", "suffix", or "draft_model" with a model, not {method!r}: heads '
            "that draft (eagle, medusa, mtp) are not there; take a smaller model of the same family as the draft"
        )
    keys = (*_OF_ALL, *_KEYS[method])
    if unknown := sorted(given.keys() - set(keys)):
        known = ", ".join(f'"{key}"' for key in ("method", *keys))
        raise ConfigError(f"speculative_config with {method} has {known}, not {', '.join(unknown)}")
    given = {name: value for name, value in given.items() if value is not None}
    _check_values(given)
    if method == "suffix":
        depth = given.get("suffix_decoding_max_tree_depth", _DEPTH)
        return Speculation(**{"method": method, "num_speculative_tokens": depth, **given})
    if "num_speculative_tokens" not in given:
        raise ConfigError('speculative_config needs "num_speculative_tokens": how many tokens to guess at a time')
    if method == "draft_model":
        if not given.get("model"):
            raise ConfigError("speculative_config: method draft_model needs a model: a folder, a GGUF file or a hub id")
        return Speculation(method="draft_model", **given)
    longest = given.get("prompt_lookup_max", given.get("prompt_lookup_min", 5))
    shortest = given.get("prompt_lookup_min", longest)
    if shortest > longest:
        raise ConfigError(
            f"speculative_config: prompt_lookup_min ({shortest}) must be at most prompt_lookup_max ({longest})"
        )
    return Speculation(**{**given, "prompt_lookup_min": shortest, "prompt_lookup_max": longest})


def _check_values(given: dict[str, Any]) -> None:
    """Raises ConfigError: a value is of the wrong type, or out of range."""
    for name, value in given.items():
        if name in _INTEGERS:
            least, most = _INTEGERS[name]
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if not is_number or value < least or (most is not None and value > most):
                bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
                raise ConfigError(f"speculative_config: {name} must be an integer {bounds}, not {value!r}")
        elif name in _NUMBERS:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _NUMBERS[name]:
                raise ConfigError(f"speculative_config: {name} must be from 0 to {_NUMBERS[name]:g}, not {value!r}")
        elif name == "adaptive":
            if not isinstance(value, bool):
                raise ConfigError(f"speculative_config: adaptive must be true or false, not {value!r}")
        elif not isinstance(value, str):
            raise ConfigError(f"speculative_config: {name} must be text, not {value!r}")
    if given.get("quantization") not in (None, "int8", "int4"):
        raise ConfigError(
            f"speculative_config: quantization must be int8 or int4, not {given['quantization']!r}; a checkpoint that "
            "is quantized needs none"
        )
