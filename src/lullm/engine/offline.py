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
) -> list[EngineOutput]:
    """The last outputs of requests, in their order; some are missing after an interrupt. Raises as `step` does."""
    outputs: dict[str, EngineOutput] = {}
    wanted: set[str] = set()
    bar = use_tqdm if callable(use_tqdm) else tqdm
    progress = bar(total=len(requests), desc="Processed prompts", disable=not use_tqdm, dynamic_ncols=True)
    num_input = num_output = 0
    try:
        for request in requests:
            engine.add_processed(request)  # may refuse an id that a request of `add_request` has
            wanted.add(request.request_id)
        while len(outputs) < len(wanted) and not interrupt.is_set():
            for output in engine.step():
                if output.request_id not in wanted:
                    continue
                outputs[output.request_id] = output
                num_input += len(output.prompt_token_ids)
                if isinstance(output, RequestOutput):
                    num_output += sum(len(completion.token_ids) for completion in output.outputs)
                elapsed = max(progress.format_dict["elapsed"], 1e-9)
                progress.set_postfix_str(
                    f"in: {num_input / elapsed:.1f} tok/s, out: {num_output / elapsed:.1f} tok/s", refresh=False
                )
                progress.update()
    finally:
        # An interrupt or a refusal half-way must not leave work behind that the next call would pay for.
        progress.close()
        for request_id in wanted - outputs.keys():
            engine.abort_request(request_id, wants_output=False)
    return [outputs[request.request_id] for request in requests if request.request_id in outputs]
