"""lullm: an LLM inference engine with a paged KV cache.

`import lullm` is quick and loads no torch: the names below are resolved at their first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lullm.version import VERSION

__version__ = VERSION

_HOMES = {
    "EngineArgs": "lullm.cli.flag.engine_args",
    "AsyncEngineArgs": "lullm.cli.flag.engine_args",
    "BeamSearchParams": "lullm.llm.beam_search",
    "LLM": "lullm.llm.llm",
    "LoRARequest": "lullm.types.lora.request",
    "PromptAdapterRequest": "lullm.types.lora.prompt_adapter",
    "SamplingParams": "lullm.types.sampling_params",
    "RequestOutputKind": "lullm.types.sampling_params",
    "EmbedsPrompt": "lullm.types.request",
    "TextPrompt": "lullm.types.request",
    "TokensPrompt": "lullm.types.request",
    "PoolingParams": "lullm.types.pooling.params",
    "PoolingRequestOutput": "lullm.types.pooling.outputs",
    "EmbeddingRequestOutput": "lullm.types.pooling.outputs",
    "ClassificationRequestOutput": "lullm.types.pooling.outputs",
    "ScoringRequestOutput": "lullm.types.pooling.outputs",
    "StructuredOutputsParams": "lullm.types.guided.params",
    "RequestOutput": "lullm.types.outputs",
    "CompletionOutput": "lullm.types.outputs",
    "EngineConfig": "lullm.config.engine",
    "LLMEngine": "lullm.engine.llm_engine",
    "AsyncLLMEngine": "lullm.engine.async_llm_engine",
    "register_model": "lullm.models.registry",
}
__all__ = [
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "EmbedsPrompt",
    "EngineArgs",
    "EngineConfig",
    "LLM",
    "LLMEngine",
    "LoRARequest",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptAdapterRequest",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "register_model",
]

if TYPE_CHECKING:
    from lullm.cli.flag.engine_args import AsyncEngineArgs, EngineArgs
    from lullm.config.engine import EngineConfig
    from lullm.engine.async_llm_engine import AsyncLLMEngine
    from lullm.engine.llm_engine import LLMEngine
    from lullm.llm.beam_search import BeamSearchParams
    from lullm.llm.llm import LLM
    from lullm.models.registry import register_model
    from lullm.types.guided.params import StructuredOutputsParams
    from lullm.types.lora.prompt_adapter import PromptAdapterRequest
    from lullm.types.lora.request import LoRARequest
    from lullm.types.outputs import CompletionOutput, RequestOutput
    from lullm.types.pooling.outputs import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )
    from lullm.types.pooling.params import PoolingParams
    from lullm.types.request import EmbedsPrompt, TextPrompt, TokensPrompt
    from lullm.types.sampling_params import RequestOutputKind, SamplingParams


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'lullm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
