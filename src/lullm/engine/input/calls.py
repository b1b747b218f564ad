"""InputCalls: the calls of an engine that go through its input processor, under vLLM's names."""

from lullm.engine.input.processor import InputProcessor
from lullm.types.lora.prompt_adapter import PromptAdapterRequest
from lullm.types.lora.request import LoRARequest
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import CallerRequest, GenerateRequest, Input
from lullm.types.sampling_params import SamplingParams
from lullm.types.vllm_argument import VLLM_STREAMS, takes_vllms


class InputCalls:
    """Calls about requests and prompt adapters. Base of engines that their caller steps.

    Attributes:
        default_params: of requests that state none.
    """

    input_processor: InputProcessor
    default_params: SamplingParams

    @takes_vllms(VLLM_STREAMS)
    def add_request(
        self,
        request_id: str,
        prompt: Input,
        params: SamplingParams | PoolingParams | None = None,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
    ) -> None:
        """Queue a request; `params` None: the model's defaults for generating. The last two: its adapters.

        Raises:
            InvalidRequestError: the request can never be served.
            EngineDeadError: the engine has stopped.
        """
        given = self.default_params if params is None else params
        adapters = lora_request, prompt_adapter_request
        asked = CallerRequest(request_id, prompt, given, priority, *adapters)
        self.add_processed(self.input_processor.process(asked))

    def add_processed(self, request: GenerateRequest) -> None:
        """Queue a request from `input_processor`. Raises as `add_request` does."""
        raise NotImplementedError

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
