"""Makes the engine that the options describe, for a server or a script: in this process, or in others.

The only place that knows all kinds.
"""

import gc
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lullm.config.engine import EngineConfig
from lullm.engine.start.head_start import head_start

if TYPE_CHECKING:  # a head start comes before what an engine imports
    from lullm.engine.client import EngineClient
    from lullm.engine.llm_engine import LLMEngine
    from lullm.engine.replica.engine import ReplicaEngine


def start_client(config: EngineConfig, stream_pause_s: float, has_process: bool) -> "EngineClient":
    """Make the client of a server. Blocks until the model is loaded; raises as the constructor of `LLMEngine` does.

    Args:
        has_process: the engine gets a process of its own, so this one loads no torch. Several engines always do.
    """
    if config.data_parallel_size > 1:
        from lullm.engine.replica.client import ReplicaClient

        client: EngineClient = ReplicaClient(config, stream_pause_s)
    elif has_process:
        from lullm.engine.process.client import ProcessClient

        client = ProcessClient(config, stream_pause_s)
    else:
        with head_start(config) as ahead:
            from lullm.engine.async_llm_engine import AsyncLLMEngine

            client = AsyncLLMEngine(config, ahead, stream_pause_s)
    gc.freeze()  # a full collection of 280,000 permanent objects would stop all streams for 0.1 s
    return client


def start_engine(config: EngineConfig) -> "LLMEngine | ReplicaEngine":
    """Make an engine that calls of `step` drive. Blocks, and raises, as the constructor of `LLMEngine` does."""
    if config.data_parallel_size > 1:
        from lullm.engine.replica.engine import ReplicaEngine

        return ReplicaEngine(config)
    with head_start(config) as ahead:
        _import_apart("lullm.engine.llm_engine")
        from lullm.engine.llm_engine import LLMEngine

        return LLMEngine(config, ahead=ahead)


def _import_apart(module: str) -> None:
    """Import what loads torch, during the head start, on a thread of its own.

    `torch.fx` leaves a frame in a circle when it is imported. With it, all frames that called it would stay until the
    next full garbage collection: also those of `LLM` and of the caller, with the memory of an engine that was dropped.
    """
    if module not in sys.modules:
        with ThreadPoolExecutor(1, "lullm-imports") as pool:
            pool.submit(importlib.import_module, module).result()
