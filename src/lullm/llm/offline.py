"""Offline: many requests through one engine until all have ended, with a progress bar."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest

if TYPE_CHECKING:
    from lullm.engine.llm_engine import LLMEngine  # loads torch
    from lullm.engine.replica.engine import ReplicaEngine


def run_all(
    engine: "LLMEngine | ReplicaEngine",
    requests: Sequence[GenerateRequest],
    use_tqdm: bool | Callable[..., Any],
    interrupt: threading.Event,
    resumed: dict[str, EngineOutput | None],
    waits_for_resumed: bool = False,
    before_step: Callable[[Sequence[EngineOutput]], None] = lambda outputs: None,
) -> list[EngineOutput]:
    """Run requests to their ends; the last outputs are in order of the requests. Raises as `step` does.

    After an interrupt some outputs are missing.

    Args:
        resumed: requests that the engine has already; their last outputs are put in here.
        before_step: gets the outputs of requests that have ended.
    """
    batch = _Batch(resumed, waits_for_resumed)
    progress = _Progress(len(requests) + batch.num_awaited, use_tqdm)
    try:
        for output in engine.take_pending():  # of requests that ended before, perhaps of the same ids
            if batch.take(output):
                progress.add(output)
        for request in requests:
            engine.add_processed(request)  # may refuse an id that `add_request` has taken
            batch.add(request.request_id)
        while batch.num_awaited and not interrupt.is_set():
            before_step(list(batch.outputs.values()))
            for output in engine.step():
                if batch.take(output):
                    progress.add(output)
    finally:
        # After an interrupt or a refusal no work stays behind for the next call.
        progress.close()
        for request_id in batch.unfinished:
            engine.abort_request(request_id, wants_output=False)
    return [batch.outputs[request.request_id] for request in requests if request.request_id in batch.outputs]


class _Batch:
    """The requests of one call, and those that were brought back.

    Attributes:
        outputs: the last outputs of the call's own requests, so far.
    """

    def __init__(self, resumed: dict[str, EngineOutput | None], waits_for_resumed: bool):
        self._resumed, self._waits_for_resumed = resumed, waits_for_resumed
        self._own: set[str] = set()
        self.outputs: dict[str, EngineOutput] = {}
        self._num_resumed = sum(output is None for output in resumed.values()) if waits_for_resumed else 0

    @property
    def num_awaited(self) -> int:
        """Requests that the call waits for."""
        return len(self._own) - len(self.outputs) + self._num_resumed

    def add(self, request_id: str) -> None:
        """The engine has one more request of the call."""
        self._own.add(request_id)

    def take(self, output: EngineOutput) -> bool:
        """Keep a last output. Returns whether the call has waited for it."""
        if output.request_id in self._own:
            is_first = output.request_id not in self.outputs
            self.outputs[output.request_id] = output
            return is_first
        if not output.finished or output.request_id not in self._resumed:
            return False
        self._resumed[output.request_id] = output
        self._num_resumed -= self._waits_for_resumed
        return self._waits_for_resumed

    @property
    def unfinished(self) -> set[str]:
        """The call's own requests without a last output."""
        return self._own - self.outputs.keys()


class _Progress:
    """A bar over requests, with tokens per second. `use_tqdm`: whether to show it, or a function that makes it."""

    def __init__(self, num_requests: int, use_tqdm: bool | Callable[..., Any]):
        bar = use_tqdm if callable(use_tqdm) else tqdm
        self._bar = bar(total=num_requests, desc="Processed prompts", disable=not use_tqdm, dynamic_ncols=True)
        self._num_input = self._num_output = 0

    def add(self, output: EngineOutput) -> None:
        """A request has ended."""
        self._num_input += len(output.prompt_token_ids)
        if isinstance(output, RequestOutput):
            self._num_output += sum(len(completion.token_ids) for completion in output.outputs)
        elapsed = max(self._bar.format_dict["elapsed"], 1e-9)
        rates = f"in: {self._num_input / elapsed:.1f} tok/s, out: {self._num_output / elapsed:.1f} tok/s"
        self._bar.set_postfix_str(rates, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
