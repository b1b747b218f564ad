"""What the faces may ask of a running engine. The server is written against this and loads no torch."""

from collections.abc import AsyncGenerator
from typing import Protocol

from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import RequestOutput
from lullm.types.request import Prompt
from lullm.types.sampling_params import SamplingParams
from lullm.types.stats import EngineStats


class EngineClient(Protocol):
    """An engine that runs beside the caller's event loop."""

    config: EngineConfig  # resolved
    model_config: ModelConfig
    tokenizer: Tokenizer
    default_params: SamplingParams  # the model's generation_config.json

    def generate(
        self, prompt: Prompt, params: SamplingParams, request_id: str, priority: int = 0
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they come, of `params.output_kind`; the last one has `finished` set.

        Closing or cancelling the generator aborts the request and frees its blocks.

        Raises:
            InvalidRequestError: at the first item, when the request can never be served.
            EngineDeadError: the engine stopped before the request ended.
        """
        ...

    def stats(self) -> EngineStats:
        """A snapshot, without waiting for the running step."""
        ...

    def check_health(self) -> None:
        """Return if the engine serves. Raises EngineDeadError otherwise, with the cause."""
        ...

    async def shutdown(self, drain: bool = True) -> None:
        """Stop taking requests; let running ones end (`drain`) or abort them; release everything. Idempotent."""
        ...
