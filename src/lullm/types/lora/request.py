"""LoRARequest: the adapter that a request is computed with."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lullm.errors import InvalidRequestError

MOST_ID = 2**31 - 1
"""Ids cross to other processes as integers of 32 bits."""
MOST_NAME_CHARS = 256
"""A name stands in every list of models, and in every answer."""


def check_fields(request: Any, param: str, name: str, path: str, least: Mapping[str, int]) -> None:
    """Check what a caller says of an adapter, and make its path a string.

    Args:
        param: of the error. name, path: the fields with these texts. least: the fields with numbers, and their bounds.

    Raises InvalidRequestError: a field is wrong.
    """
    if isinstance(getattr(request, path), os.PathLike):
        object.__setattr__(request, path, os.fspath(getattr(request, path)))  # it is frozen
    for field in (name, path):
        value = getattr(request, field)
        if not isinstance(value, str) or not value or not value.isprintable():
            raise InvalidRequestError(f"{field} must be a text that is not empty, not {value!r}", param)
    if (num_chars := len(getattr(request, name))) > MOST_NAME_CHARS:
        raise InvalidRequestError(f"{name} has {num_chars} characters; take at most {MOST_NAME_CHARS}", param)
    for field, bound in least.items():
        value = getattr(request, field)
        if not isinstance(value, int) or isinstance(value, bool) or not bound <= value <= MOST_ID:
            raise InvalidRequestError(f"{field} must be an integer from {bound} to {MOST_ID}, not {value!r}", param)


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """A LoRA adapter (https://arxiv.org/abs/2106.09685), under vLLM's names.

    The engine loads it at the first request that names it. The id stands for the adapter until it is removed.

    Args:
        lora_name: the name clients use, of at most 256 characters.
        lora_int_id: 1 or more; each adapter has its own.
        lora_path: a folder in PEFT's form: adapter_config.json and adapter_model.safetensors.

    Raises:
        InvalidRequestError: a field is wrong; `.param` is 'lora_request'.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        check_fields(self, "lora_request", "lora_name", "lora_path", {"lora_int_id": 1})

    @property
    def name(self) -> str:
        """vLLM's short name of `lora_name`; the two below likewise."""
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path
