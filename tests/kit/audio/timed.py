"""A sound of several windows, sent to a server whose Whisper says times."""

from typing import Any

import numpy as np
from httpx import Response
from kit.audio.checkpoint import sound
from kit.audio.file import wav

from lullm.config.engine import EngineConfig
from lullm.engine.async_llm_engine import AsyncLLMEngine

MAX_MODEL_LEN, LENGTH = 48, 20
LONG = sound(3, 2.3)
SURE = {"logprob_threshold": "-1000", "compression_ratio_threshold": "1000"}
FIELDS = {"max_completion_tokens": str(LENGTH), "response_format": "verbose_json", **SURE}


def ears(whisper: Any) -> AsyncLLMEngine:
    options = {"dtype": "float32", "max_model_len": MAX_MODEL_LEN, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
    return AsyncLLMEngine(EngineConfig(model=str(whisper.folder), served_model_name="ears", **options))


def file_of(samples: np.ndarray) -> tuple[str, bytes]:
    return ("sound.wav", wav(samples, bits=32, is_float=True))


def post(running: Any, samples: np.ndarray = LONG, path: str = "transcriptions", **fields: Any) -> Response:
    with running.http() as http:
        return http.post(f"/v1/audio/{path}", files={"file": file_of(samples)}, data=fields)
