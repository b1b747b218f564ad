"""Arguments that several calls of `LLM` take: one prompt or several, one value for all or one for each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, cast, get_args

from lullm.errors import InvalidRequestError
from lullm.types.lora.prompt_adapter import PromptAdapterRequest
from lullm.types.lora.request import LoRARequest
from lullm.types.request import Conversation, Prompt
from lullm.types.sampling_params import integers

UseTqdm = bool | Callable[..., Any]
"""Whether to show progress; or a function that makes the progress bar, with tqdm's arguments."""


Loras = LoRARequest | Sequence[LoRARequest | None] | None
PromptAdapters = PromptAdapterRequest | Sequence[PromptAdapterRequest | None] | None
"""The adapter of all prompts, or of each; None: none."""


def lora_each(loras: Any, num_prompts: int) -> list[LoRARequest | None]:
    """The adapter of each prompt. Raises InvalidRequestError."""
    if isinstance(loras, LoRARequest | None):
        return [loras] * num_prompts
    return one_each("lora_request", loras, LoRARequest | None, num_prompts)


def prompt_adapter_each(adapters: Any, num_prompts: int) -> list[PromptAdapterRequest | None]:
    """The prompt adapter of each prompt. Raises InvalidRequestError."""
    return one_each("prompt_adapter_request", adapters, PromptAdapterRequest | None, num_prompts)


def as_prompts(prompts: Any) -> Sequence[Prompt]:
    """One prompt or several as a list. A list of ids is one prompt, and so is an array of one dimension."""
    if isinstance(prompts, (str, dict)):
        return [cast(Prompt, prompts)]
    prompts = _listed(prompts, "prompts must be a prompt or a list of them", "prompt")
    return [prompts] if prompts and integers(prompts) is not None else prompts


def _listed(values: Any, rule: str, name: str) -> list[Any]:
    """What can be gone through as a list: an array, a generator, a column of a table or of a dataset.

    Raises InvalidRequestError, with the rule. A mapping would give its keys, and bytes give numbers.
    """
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise InvalidRequestError(f"{rule}, not {type(values).__name__}", name)
    return list(values)


def one_each(name: str, value: Any, kind: type | UnionType, num_prompts: int) -> list[Any]:
    """A list with one value for each prompt. Raises InvalidRequestError, which names the argument."""
    if isinstance(value, kind):
        return [value] * num_prompts
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(item, kind) for item in value):
        wanted = getattr(kind, "__name__", None) or get_args(kind)[0].__name__  # of `X | None`
        raise InvalidRequestError(f"{name} must be {wanted} or a list of them", name)
    if len(value) != num_prompts:
        raise InvalidRequestError(f"{len(value)} {name} for {num_prompts} prompts", name)
    return list(value)


def conversations(
    messages: Any,
    template_kwargs: Any,
    tools: Any,
    turn: dict[str, bool],
    split: bool | None,
    template: str | None,
    mm_processor_kwargs: Any,
) -> list[Conversation]:
    """A list of conversations from one or several, with the template's own variables, tools and `turn_options`.

    Raises InvalidRequestError: an argument has the wrong type.
    """
    messages = _listed(messages, "messages must be a list of messages", "messages")
    if not isinstance(template_kwargs, dict | None):
        kind = type(template_kwargs).__name__
        raise InvalidRequestError(f"chat_template_kwargs must be a dict, not {kind}", "chat_template_kwargs")
    options = (template_kwargs or {}) | ({"tools": list(tools)} if tools else {}) | turn
    each = [messages] if messages and isinstance(messages[0], dict) else messages
    return [
        Conversation(one, options, split, template=template, mm_processor_kwargs=mm_processor_kwargs) for one in each
    ]


def turn_options(add_generation_prompt: bool | None, continue_final_message: bool) -> dict[str, bool]:
    """Template options for the end of a conversation. Raises InvalidRequestError: both arguments are set."""
    if continue_final_message and add_generation_prompt:
        raise InvalidRequestError(
            "add_generation_prompt opens a new turn, and continue_final_message none; take one of them",
            "continue_final_message",
        )
    options = {"continue_final_message": True} if continue_final_message else {}
    return options if add_generation_prompt is None else options | {"add_generation_prompt": add_generation_prompt}
