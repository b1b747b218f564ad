"""`speculative_config`: how the next tokens are guessed, with vLLM's keys.

{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
"""

from dataclasses import dataclass

from lullm.config.json_file import option_object
from lullm.errors import ConfigError, UnsupportedError

MOST_TOKENS = 1024
_NUMBERS = ("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Up to `num_speculative_tokens` tokens are guessed: those behind an earlier place of the last few tokens, of
    `prompt_lookup_min` to `prompt_lookup_max` ones."""

    num_speculative_tokens: int
    prompt_lookup_min: int
    prompt_lookup_max: int


def parse_speculation(text: str | None) -> Speculation | None:
    """The value of `speculative_config`; None: nothing is guessed.

    Bounds that are left out are 5, as in vLLM, or equal to the other one.

    Raises:
        ConfigError: no such object, or a number is missing or out of range.
        UnsupportedError: another method.
    """
    data = option_object("speculative_config", text)
    if not data:
        return None
    method = data.pop("method", None)
    if method != "ngram":
        raise UnsupportedError(
            f'speculative_config: the only method is "ngram", not {method!r}: no model drafts tokens yet'
        )
    if unknown := sorted(data.keys() - set(_NUMBERS)):
        raise ConfigError(f"speculative_config has method, {', '.join(_NUMBERS)}, not {', '.join(unknown)}")
    for name, value in data.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_TOKENS:
            raise ConfigError(f"speculative_config: {name} must be an integer from 1 to {MOST_TOKENS}, not {value!r}")
    if "num_speculative_tokens" not in data:
        raise ConfigError("speculative_config needs num_speculative_tokens: how many tokens to guess at a time")
    longest = data.get("prompt_lookup_max", data.get("prompt_lookup_min", 5))
    shortest = data.get("prompt_lookup_min", longest)
    if shortest > longest:
        raise ConfigError(
            f"speculative_config: prompt_lookup_min ({shortest}) must be at most prompt_lookup_max ({longest})"
        )
    return Speculation(
        num_speculative_tokens=data["num_speculative_tokens"], prompt_lookup_min=shortest, prompt_lookup_max=longest
    )
