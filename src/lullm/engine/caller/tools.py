"""Errors about calls of tools that a grammar guides."""

import re

from lullm.errors import InvalidRequestError
from lullm.types.sampling_params import SamplingParams

_GRAMMAR_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")


def check_calls_alone(params: SamplingParams) -> None:
    """Raises InvalidRequestError: an option does not go with guided calls."""
    for name in ("beam_width", "allowed_token_ids"):
        if getattr(params, name) is not None:
            raise InvalidRequestError(f"{name} does not go with calls that have a grammar", name)


def tools_error(message: str) -> str:
    """The error of a grammar that was made from tools, without its lines, which the caller has never seen."""
    first, _, _ = message.partition("\n")
    reason = _GRAMMAR_PLACE.sub("", first.removeprefix("structured_outputs: "))
    return f"tools: {reason}"
