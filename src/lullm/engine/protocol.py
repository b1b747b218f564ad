"""What the faces may ask of a running engine. The server is written against this and loads no torch."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import RequestOutput
from lullm.types.request import Prompt
from lullm.types.sampling_params import SamplingParams
from lullm.types.sleep import SleepMode, SleepReport
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
            EngineAsleepError: at the first item, when the engine sleeps, or waits for its requests to do so. A
                request that was taken before is kept: its outputs pause, and go on after waking.
            EngineDeadError: the engine stopped before the request ended.
        """
        ...

    async def sleep(self, level: int = 1, mode: SleepMode = "keep", tags: Sequence[str] | None = None) -> SleepReport:
        """Release memory; returns once it is released. Idempotent.

        With mode 'wait' running requests end first, and new ones are refused meanwhile. Whoever is cancelled while
        waiting cancels the sleep.

        Args:
            level, mode, tags: see `LLMEngine.sleep`.

        Raises:
            ConfigError, InvalidRequestError, EngineAsleepError, OSError: see `LLMEngine.sleep`.
            SleepCancelledError: mode 'wait', and a `wake_up` or another sleep came before the requests had ended.
            EngineDeadError: the engine stopped first.
        """
        ...

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring back `tags` (None: all); returns once they are there. Idempotent. Cancels a sleep that still waits.

        Raises:
            InvalidRequestError: unknown tag. WakeUpError: it did not come back as it was, and is still asleep.
            EngineDeadError: the engine stopped first.
        """
        ...

    @property
    def is_sleeping(self) -> bool:
        """Whether something is released, or the engine paused (level 0). From any thread."""
        ...

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """What is released now. From any thread."""
        ...

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests keep theirs. Raises EngineDeadError."""
        ...

    def stats(self) -> EngineStats:
        """A snapshot, without waiting for the running step."""
        ...

    def check_health(self) -> None:
        """Return if the engine serves. Raises EngineDeadError otherwise, with the cause."""
        ...

    async def shutdown(self, drain: bool = True) -> None:
        """Stop taking requests; let running ones end (`drain`) or abort them; release everything. Idempotent.

        What an engine that sleeps has kept cannot end, and is aborted either way.
        """
        ...
