"""LoRARequest: the adapter that a request is computed with."""

import os
from dataclasses import dataclass

from lullm.errors import InvalidRequestError

MOST_ID = 2**31 - 1
"""Ids cross to other processes as integers of 32 bits."""
MOST_NAME_CHARS = 256
"""A name stands in every list of models, and in every answer."""


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
        if isinstance(self.lora_path, os.PathLike):
            object.__setattr__(self, "lora_path", os.fspath(self.lora_path))
        for name in ("lora_name", "lora_path"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value or not value.isprintable():
                raise InvalidRequestError(f"{name} must be a text that is not empty, not {value!r}", "lora_request")
        if len(self.lora_name) > MOST_NAME_CHARS:
            raise InvalidRequestError(
                f"lora_name has {len(self.lora_name)} characters; take at most {MOST_NAME_CHARS}", "lora_request"
            )
        value = self.lora_int_id
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_ID:
            raise InvalidRequestError(
                f"lora_int_id must be an integer from 1 to {MOST_ID}, not {value!r}", "lora_request"
            )

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
