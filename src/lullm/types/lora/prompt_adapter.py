"""PromptAdapterRequest: the prompt adapter whose rows stand before a request's prompt."""

from dataclasses import dataclass

from lullm.types.lora.request import check_fields


@dataclass(frozen=True, slots=True)
class PromptAdapterRequest:
    """A prompt adapter (https://arxiv.org/abs/2104.08691), under the names of vLLM 0.6.

    The first request that names it reads its folder. The id stands for the adapter until it is removed.

    Args:
        prompt_adapter_name: the name clients use, of at most 256 characters.
        prompt_adapter_id: 1 or more; each adapter has its own.
        prompt_adapter_local_path: a folder in PEFT's form: adapter_config.json and adapter_model.safetensors.
        prompt_adapter_num_virtual_tokens: its rows, which must be as many as the folder says; 0: not said.

    Raises:
        InvalidRequestError: a field is wrong; `.param` is 'prompt_adapter_request'.
    """

    prompt_adapter_name: str
    prompt_adapter_id: int
    prompt_adapter_local_path: str
    prompt_adapter_num_virtual_tokens: int = 0

    def __post_init__(self) -> None:
        check_fields(
            self,
            "prompt_adapter_request",
            "prompt_adapter_name",
            "prompt_adapter_local_path",
            {"prompt_adapter_id": 1, "prompt_adapter_num_virtual_tokens": 0},
        )

    @property
    def name(self) -> str:
        """Short for `prompt_adapter_name`; the two below likewise."""
        return self.prompt_adapter_name

    @property
    def adapter_id(self) -> int:
        return self.prompt_adapter_id

    @property
    def path(self) -> str:
        return self.prompt_adapter_local_path
