"""PromptAdapterCalls: the prompt adapters of an engine, under the names of vLLM 0.6."""

from lullm.engine.input import InputProcessor
from lullm.types.lora.prompt_adapter import PromptAdapterRequest


class PromptAdapterCalls:
    """Calls about prompt adapters. Base of engines."""

    input_processor: InputProcessor

    def add_prompt_adapter(self, prompt_adapter_request: PromptAdapterRequest) -> bool:
        """Read a prompt adapter now, not at its first request. Blocking. False: it was there already.

        Raises:
            InvalidRequestError: the engine has no `enable_prompt_adapter`, or the id is another adapter's.
            ModelLoadError: the folder is no prompt adapter for the model; the message says what does not fit.
        """
        return self.input_processor.prompt_adapters.add(prompt_adapter_request)

    def remove_prompt_adapter(self, prompt_adapter_id: int) -> bool:
        """Forget a prompt adapter; requests that have it go on. False: there is none of this id."""
        return self.input_processor.prompt_adapters.remove(prompt_adapter_id)

    def list_prompt_adapters(self) -> set[int]:
        """The ids of all prompt adapters."""
        return self.input_processor.prompt_adapters.ids
