"""Warm-up: compiles every kernel that a request can reach, before the first request.

Triton compiles a kernel at its first launch, in 1 to 3 seconds, and keeps it on disk for the next start. Without a
warm-up the first found prefix or the first fork would delay all requests.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from lullm.kv.layout import cache_layout_of
from lullm.log import get_logger
from lullm.models.protocol import Model
from lullm.ops.cache.layer_cache import LayerCache
from lullm.types.draw import Draw, DrawParams
from lullm.types.packed import pack
from lullm.types.step import Span, StepPlan
from lullm.worker.kv_pools import KVPools, loose_blocks
from lullm.worker.probe import behind_encoder
from lullm.worker.setup import WorkerSetup

logger = get_logger(__name__)


def compile_ahead(setup: WorkerSetup, model: Model) -> None:
    """Compile nearly all kernels on several threads at a time, before any launch or measurement. Blocking.

    The same steps run, over their own blocks and without kernels, so their results are undefined. The step that ranks
    log-probabilities is left out: it uses drawn tokens as indices.
    """
    if setup.ops.compile_attention is not None:
        started = time.perf_counter()
        _run(setup, model, loose_blocks(setup, 2), [], _plans(setup, has_copy=True)[:2], setup.ops.compiling_ahead())
        logger.info("kernels: compiled ahead, or found on disk, in %.1f s", time.perf_counter() - started)


def compile_kernels(setup: WorkerSetup, model: Model, pools: KVPools) -> None:
    """Launch all kernels in tiny steps over the first two blocks, which must be free. Blocking.

    Every layer runs, so every shape of a norm, a product, a window occurs. `Ops.compile_attention` and
    `compile_experts` launch the kernels for other lengths. Does nothing if no ops are compiled.
    """
    if setup.ops.compile_attention is not None:
        started = time.perf_counter()
        plans = _plans(setup, has_copy=pools.device[0].num_blocks > 1)
        _run(setup, model, pools.device, pools.host, plans, nullcontext())
        logger.info("kernels: launched once in %.1f s", time.perf_counter() - started)


def _run(
    setup: WorkerSetup,
    model: Model,
    blocks: list[LayerCache],
    host_blocks: list[LayerCache],
    plans: Sequence[StepPlan],
    scope: AbstractContextManager[None],
) -> None:
    """Run each step to its end; attention and experts run all their kernels."""
    ops = setup.ops
    assert ops.compile_attention is not None
    ops = replace(ops, attention=ops.compile_attention, experts=ops.compile_experts or ops.experts)
    runner = replace(setup, ops=ops).new_model_runner(model, blocks, host_blocks)
    with scope:
        for plan in plans:
            runner.launch(plan).result()
    setup.device.synchronize()


def _plans(setup: WorkerSetup, has_copy: bool) -> list[StepPlan]:
    """A prompt, a decode, and the other ways to draw. One kernel copies and swaps blocks."""
    config = setup.config
    prompt_len = min(2, config.max_num_batched_tokens, config.max_model_len, config.block_size)
    if not setup.model_config.generates:
        return [StepPlan([_span(setup, prompt_len, None)])]
    params = DrawParams(temperature=1.0, top_p=0.9)
    plans = [
        StepPlan([_span(setup, prompt_len, params)], blocks_to_copy=[(0, 1)] if has_copy else []),
        StepPlan([_span(setup, 1, params)]),
    ]
    if config.logprobs_mode == "processed_logprobs":  # the kernel leaves the processed logits in place
        plans.append(StepPlan([_span(setup, prompt_len, DrawParams(num_logprobs=0))]))
    return plans


def _span(setup: WorkerSetup, num_tokens: int, params: DrawParams | None) -> Span:
    """A span in the first block of every group. `params` None: for a vector."""
    config, last = setup.config, num_tokens - 1
    groups = cache_layout_of(setup.model_config, config.block_size, config.kv_dtype).groups
    tables = tuple(pack([0] if group.keeps_tokens else [0] * group.num_state_blocks) for group in groups)
    tokens = pack([0] * num_tokens)
    if params is None:
        return Span(0, 0, tokens, tables, pooled_rows=(last, num_tokens))
    [span] = behind_encoder(setup, [Span(0, 0, tokens, tables, (Draw(0, last, params),))])
    return span
