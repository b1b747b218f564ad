"""What the calls of `LLM` have in common: one prompt or several, one value for all or one each."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from lullm.errors import InvalidRequestError
from lullm.types.request import Prompt
from lullm.types.sampling_params import integers

UseTqdm = bool | Callable[..., Any]
"""Whether to show progress; or what makes the progress bar, called as tqdm is."""


def as_prompts(prompts: Any) -> Sequence[Prompt]:
    """One prompt or several -> several. A list of ids is one prompt, and so is an array of one dimension."""
    if isinstance(prompts, (str, dict)):
        return [cast(Prompt, prompts)]
    if hasattr(prompts, "tolist"):
        prompts = prompts.tolist()
    if not isinstance(prompts, (list, tuple)):
        raise InvalidRequestError(f"prompts must be a prompt or a list of them, not {type(prompts).__name__}", "prompt")
    return [prompts] if prompts and integers(prompts) is not None else prompts


def one_each(name: str, value: Any, kind: type, num_prompts: int) -> list[Any]:
    """One `value` for all prompts, or one each, as a list. Raises InvalidRequestError, naming the argument."""
    if isinstance(value, kind):
        return [value] * num_prompts
    if not isinstance(value, Sequence) or not all(isinstance(item, kind) for item in value):
        raise InvalidRequestError(f"{name} must be {kind.__name__} or a list of them", name)
    if len(value) != num_prompts:
        raise InvalidRequestError(f"{len(value)} {name} for {num_prompts} prompts", name)
    return list(value)
