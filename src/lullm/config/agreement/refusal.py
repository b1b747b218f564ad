"""How options are refused: by a table of wishes, or because a value would have no effect."""

from collections.abc import Mapping

from lullm.config.option.option import options_of
from lullm.config.user_option import UserOptions
from lullm.errors import ConfigError, LullmError


def refuse_first(options: UserOptions, error: type[LullmError], wishes: Mapping[str, tuple[bool, str]]) -> None:
    """Raise `error` for the first wish that is wanted. `wishes`: by option, whether it is, and words for its value."""
    for name, (is_wanted, words) in wishes.items():
        if is_wanted:
            raise error(f"{name}={getattr(options, name)!r} {words}")


def check_defaults(options: UserOptions, names: tuple[str, ...], needs: str) -> None:
    """Raises ConfigError: one of these options is not at its default, and would have no effect."""
    if found := changed(options, names):
        raise ConfigError(f"{found[0]} needs {needs}")


def changed(options: UserOptions, names: tuple[str, ...]) -> list[str]:
    """The options among `names` that are not at their defaults."""
    defaults = {each.name: each.default for each in options_of(UserOptions)}
    return [name for name in names if getattr(options, name) != defaults[name]]
