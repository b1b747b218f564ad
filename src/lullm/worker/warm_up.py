"""Warm-up: compiles every kernel that a request can reach, before there is a request.

Triton compiles a kernel when it is first launched, 1 to 3 seconds each, and keeps it on disk for the next start. The
first prefix that is found, or the first fork, would hold up all requests for so long.
"""

import time
from dataclasses import replace

from lullm.kv.layout import cache_layout_of
from lullm.log import get_logger
from lullm.models.protocol import Model
from lullm.types.draw import Draw, DrawParams
from lullm.types.packed import pack
from lullm.types.step import Span, StepPlan
from lullm.worker.kv_pools import KVPools
from lullm.worker.setup import WorkerSetup

logger = get_logger(__name__)


def compile_kernels(setup: WorkerSetup, model: Model, pools: KVPools) -> None:
    """Run some tiny steps over the first two blocks, which must be free. Blocking. Nothing, if no ops are compiled.

    Every layer runs, so every shape of a norm, a product, a window occurs. `Ops.compile_attention` launches what
    `attention` would choose for other lengths.
    """
    attention = setup.ops.compile_attention
    if attention is None:
        return
    started = time.perf_counter()
    ops = replace(setup.ops, attention=attention)
    runner = replace(setup, ops=ops).new_model_runner(model, pools.device, pools.host, pools.workspace)
    for plan in _plans(setup, has_copy=pools.device[0].num_blocks > 1):
        runner.launch(plan).result()
    setup.device.synchronize()
    logger.info("kernels: compiled, or found on disk, in %.1f s", time.perf_counter() - started)


def _plans(setup: WorkerSetup, has_copy: bool) -> list[StepPlan]:
    """A prompt, a decode, and what is drawn otherwise. A block is copied as it is swapped: by one kernel."""
    config = setup.config
    prompt_len = min(2, config.max_num_batched_tokens, config.max_model_len, config.block_size)
    if not setup.model_config.generates:
        return [StepPlan([_span(setup, prompt_len, None)])]
    params = DrawParams(temperature=1.0, top_p=0.9)
    plans = [
        StepPlan([_span(setup, prompt_len, params)], blocks_to_copy=[(0, 1)] if has_copy else []),
        StepPlan([_span(setup, 1, params)]),
    ]
    if config.logprobs_mode == "processed_logprobs":  # the kernel leaves in the logits what it has drawn from
        plans.append(StepPlan([_span(setup, prompt_len, DrawParams(num_logprobs=0))]))
    return plans


def _span(setup: WorkerSetup, num_tokens: int, params: DrawParams | None) -> Span:
    """In the first block of every group. `params` None: for a vector."""
    config, last = setup.config, num_tokens - 1
    groups = cache_layout_of(setup.model_config, config.block_size, config.kv_dtype).groups
    tables = tuple(pack([0] if group.keeps_tokens else [0] * group.num_state_blocks) for group in groups)
    tokens = pack([0] * num_tokens)
    if params is None:
        return Span(0, 0, tokens, tables, pooled_rows=(last, num_tokens))
    return Span(0, 0, tokens, tables, (Draw(0, last, params),))
