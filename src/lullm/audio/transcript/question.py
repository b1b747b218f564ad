"""Questions to a model about a sound: no engine is known here, so a server and a command run the same.

A `Course` yields questions and is sent their outputs, in order; it returns what it has found.
"""

from collections.abc import Generator
from typing import TypeVar

import numpy as np

from lullm.types.pooling.outputs import EngineOutput
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import Prompt
from lullm.types.sampling_params import SamplingParams

T = TypeVar("T")
Sound = tuple[np.ndarray, int]
"""(samples `[N]` float32 of one channel, samples per second)"""
Question = tuple[Prompt, SamplingParams | PoolingParams]
"""Questions that are asked together all want tokens, or all want vectors."""
Course = Generator[list[Question], list[EngineOutput], T]


def heard(token_ids: list[int], sound: Sound) -> Prompt:
    """The prompt of one window."""
    return {"prompt_token_ids": token_ids, "multi_modal_data": {"audio": sound}}
