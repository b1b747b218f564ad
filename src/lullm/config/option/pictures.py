"""`limit_mm_per_prompt`: how many pictures, videos and sounds a prompt may have, with vLLM's keys: {"image": 4}.
`allowed_media_domains`: the hosts that they may be fetched from.
"""

from dataclasses import dataclass

from lullm.config.json_file import option_object
from lullm.errors import ConfigError

_MOST = 999
"""vLLM's default."""
ANY_HOST = "*"
"""In `allowed_media_domains`: any host of the public internet."""
_KINDS = ("image", "video", "audio")


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """The most of each kind in a prompt; 0: the model is loaded without what reads it, and nothing else."""

    image: int = _MOST
    audio: int = _MOST
    video: int = _MOST


def parse_limits(text: str | None) -> MediaLimits:
    """The value of `limit_mm_per_prompt`. Raises ConfigError: no such object."""
    data = option_object("limit_mm_per_prompt", text)
    if unknown := sorted(data.keys() - set(_KINDS)):
        raise ConfigError(f"limit_mm_per_prompt has {', '.join(_KINDS)}, not {', '.join(unknown)}")
    for name, value in data.items():
        count = value.get("count", _MOST) if isinstance(value, dict) else value
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigError(f"limit_mm_per_prompt: {name} must be an integer of at least 0, not {count!r}")
        data[name] = count
    return MediaLimits(*(data.get(name, _MOST) for name in ("image", "audio", "video")))


def check_hosts(names: tuple[str, ...]) -> None:
    """Check `allowed_media_domains`. Raises ConfigError: one is an address or a pattern, so no host would equal it."""
    for name in names:
        if name != ANY_HOST and (not name or any(mark in name for mark in "/:@*, ")):
            raise ConfigError(
                f"allowed_media_domains takes names of hosts such as example.com, or '*' for any, not {name!r}"
            )
