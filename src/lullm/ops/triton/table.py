"""The rows of the ops table for a GPU. Loads Triton, so `ops.selection.select_ops` imports it on demand."""

import dataclasses

import torch

from lullm.ops.activation import activate
from lullm.ops.table import ATTENTION_FEATURES, Ops
from lullm.ops.triton import attention, block_copy, elementwise, rope_cache
from lullm.ops.triton.decode_attention import MAX_NUM_KV_HEADS
from lullm.ops.triton.draw.tokens import draw_tokens
from lullm.ops.triton.launch import compiling_ahead
from lullm.ops.triton.layer import experts, mutual, state
from lullm.ops.triton.product import invariant

TRITON_OPS = Ops(
    name="triton",
    embedding=elementwise.embedding,
    linear=elementwise.linear,
    logits=elementwise.logits,
    gated_linear=elementwise.gated_linear,
    activate=activate,
    layer_norm=elementwise.layer_norm,
    rms_norm=elementwise.rms_norm,
    rms_norm_=elementwise.rms_norm_,
    add_rms_norm=elementwise.add_rms_norm,
    experts=experts.experts,
    causal_convolution=state.causal_convolution,
    gated_delta_rule=state.gated_delta_rule,
    state_space=state.state_space,
    selective_scan=state.selective_scan,
    rg_lru=state.rg_lru,
    rope_and_cache=rope_cache.rope_and_cache,
    write_cache=rope_cache.write_cache,
    prepare_attention=attention.prepare_attention,
    attention=attention.attention,
    mutual_attention=mutual.mutual_attention,
    compile_attention=attention.every_attention,
    compile_experts=experts.every_experts,
    compiling_ahead=compiling_ahead,
    copy_blocks=block_copy.copy_blocks,
    swap_blocks=block_copy.swap_blocks,
    draw_tokens=draw_tokens,
    is_recordable=True,
    # A row of latents has 576 elements, and 128 heads read it: no tile holds them.
    attention_features=ATTENTION_FEATURES - {"latents"},
    index_dtype=torch.int32,
    semaphores_per_span=MAX_NUM_KV_HEADS,
)
"""Triton kernels, and torch's matrix products of more than two rows."""

INVARIANT_OPS = dataclasses.replace(
    TRITON_OPS,
    name="triton, batch-invariant",
    linear=invariant.linear,
    logits=invariant.logits,
    gated_linear=invariant.gated_linear,
    experts=experts.invariant_experts,
    compile_experts=experts.invariant_experts,
    attention=attention.invariant_attention,
    compile_attention=attention.invariant_attention,
    is_batch_invariant=lambda dtype, cache_dtype, head_size: True,
)
"""Products and attention with an order of sums that depends only on the row."""

GATHERED_OPS = dataclasses.replace(
    TRITON_OPS,
    name="triton with torch's attention",
    attention=attention.gathered_attention,
    compile_attention=attention.gathered_attention,
    is_recordable=False,
    attention_features=ATTENTION_FEATURES,
)
"""The same with attention in torch; no graph can record it."""
