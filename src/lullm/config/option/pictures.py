"""`limit_mm_per_prompt`: how many pictures and sounds a prompt may have, with vLLM's keys: {"image": 4, "audio": 1}."""

from lullm.config.json_file import option_object
from lullm.errors import ConfigError

MOST_PICTURES = 999
"""vLLM's default, of sounds, too."""
_KINDS = ("image", "video", "audio")


def parse_most(text: str | None, kind: str) -> int:
    """The value of `limit_mm_per_prompt` for a kind; None: `MOST_PICTURES`. Videos are taken by no model here.

    Raises ConfigError: no such object.
    """
    data = option_object("limit_mm_per_prompt", text)
    if unknown := sorted(data.keys() - set(_KINDS)):
        raise ConfigError(f"limit_mm_per_prompt has {', '.join(_KINDS)}, not {', '.join(unknown)}")
    for name, value in data.items():
        count = value.get("count", MOST_PICTURES) if isinstance(value, dict) else value
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigError(f"limit_mm_per_prompt: {name} must be an integer of at least 0, not {count!r}")
        data[name] = count
    most: int = data.get(kind, MOST_PICTURES)
    return most


def is_turned_off(text: str | None, kind: str) -> bool:
    """Whether prompts may have none of a kind."""
    value = option_object("limit_mm_per_prompt", text).get(kind)
    return (value.get("count") if isinstance(value, dict) else value) == 0
