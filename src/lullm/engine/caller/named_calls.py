"""NamedCalls: what scripts call on vLLM's `AsyncLLMEngine`, by means of an `EngineClient`'s own methods."""

import contextlib
from collections.abc import AsyncGenerator

from lullm.engine.client import EngineClient
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import PoolingOutput, PoolingRequestOutput
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import Conversation, Input, Prompt
from lullm.types.sampling_params import SamplingParams


class NamedCalls:
    """The calls of an `EngineClient` that derives from it."""

    async def generate(
        self: EngineClient,
        prompt: Prompt | Conversation,
        sampling_params: SamplingParams,
        request_id: str,
        priority: int = 0,
        keep_alive: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """`prepare` and `stream` in one; errors of either come at the first item."""
        request = await self.prepare(request_id, prompt, sampling_params, priority)
        async with contextlib.aclosing(self.stream(request, keep_alive)) as outputs:
            async for output in outputs:
                yield output

    async def encode(
        self: EngineClient,
        prompt: Input,
        pooling_params: PoolingParams,
        request_id: str,
        priority: int = 0,
        keep_alive: float | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """`prepare` and `pool` in one, as a generator of the one output; errors of either come at the first item."""
        request = await self.prepare(request_id, prompt, pooling_params, priority)
        yield await self.pool(request, keep_alive)

    async def is_sleeping(self: EngineClient) -> bool:
        """Whether something is released, or the engine paused (level 0)."""
        return self.sleep_state != "awake"

    async def get_tokenizer(self: EngineClient) -> Tokenizer:
        """The model's tokenizer, with its chat template."""
        return self.tokenizer

    async def check_health(self: EngineClient) -> None:
        """As `check_running`, under vLLM's name."""
        self.check_running()
