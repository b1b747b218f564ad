"""The versions of the ops for a CPU, and the choice for a device. The versions for a GPU are in `triton.table`."""

import dataclasses

import torch

from lullm.collective.collective import Collective
from lullm.errors import UnsupportedError
from lullm.log import get_logger
from lullm.machine.processor import default_num_threads
from lullm.ops import grouped_attention, reference, torch_cpu
from lullm.ops.activation import activate
from lullm.ops.cpu import (
    native,
    native_attention,
    native_draw,
    native_experts,
    native_latent,
    native_lora,
    native_state,
    quantized_native,
)
from lullm.ops.cpu.digest import NativeDigest
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.experts import reference as expert_reference
from lullm.ops.experts.grouped import experts_over
from lullm.ops.lora import reference as lora_reference
from lullm.ops.quantized import reference as quantized_reference
from lullm.ops.state import mixing
from lullm.ops.state import reference as state_reference
from lullm.ops.table import ATTENTION_FEATURES, Ops
from lullm.types.arithmetic import AttentionFeature

logger = get_logger(__name__)

REFERENCE_OPS = Ops(
    name="reference",
    embedding=reference.embedding,
    linear=reference.linear,
    logits=reference.logits,
    gated_linear=reference.gated_linear,
    activate=reference.activate,
    layer_norm=reference.layer_norm,
    rms_norm=reference.rms_norm,
    rms_norm_=reference.rms_norm_,
    add_rms_norm=reference.add_rms_norm,
    experts=expert_reference.experts,
    rope_and_cache=reference.rope_and_cache,
    write_cache=reference.write_cache,
    prepare_attention=reference.prepare_attention,
    attention=reference.attention,
    mutual_attention=reference.mutual_attention,
    copy_blocks=reference.copy_blocks,
    swap_blocks=reference.swap_blocks,
    add_=reference.add_,
    scale_=reference.scale_,
    soft_cap_=reference.soft_cap_,
    quantized_embedding=quantized_reference.quantized_embedding,
    quantized_linear=quantized_reference.quantized_linear,
    quantized_logits=quantized_reference.quantized_logits,
    quantized_gated_linear=quantized_reference.quantized_gated_linear,
    causal_convolution=mixing.causal_convolution_over(state_reference.convolve),
    gated_delta_rule=mixing.gated_delta_rule_over(state_reference.scan),
    state_space=mixing.state_space_over(state_reference.scan),
    selective_scan=mixing.selective_scan_over(state_reference.select),
    rg_lru=mixing.rg_lru_over(state_reference.unite),
    gate=reference.gate,
    add_lora_=lora_reference.add_lora_,
)
"""The golden version: the table's definitions in the plainest torch."""

TORCH_CPU_OPS = Ops(
    name="torch_cpu",
    embedding=torch_cpu.embedding,
    linear=torch_cpu.linear,
    logits=torch_cpu.logits,
    gated_linear=torch_cpu.gated_linear,
    activate=activate,
    layer_norm=torch_cpu.layer_norm,
    rms_norm=torch_cpu.rms_norm,
    rms_norm_=torch_cpu.rms_norm_,
    add_rms_norm=torch_cpu.add_rms_norm,
    experts=experts_over(torch_cpu.linear),
    rope_and_cache=torch_cpu.rope_and_cache,
    write_cache=torch_cpu.write_cache,
    prepare_attention=torch_cpu.prepare_attention,
    attention=grouped_attention.attention,
    mutual_attention=torch_cpu.mutual_attention,
    copy_blocks=torch_cpu.copy_blocks,
    swap_blocks=torch_cpu.swap_blocks,
)
"""Torch on a CPU, fast without a compiled library."""


def _native_keeps_bits(dtype: str, cache_dtype: str, head_size: int) -> bool:
    """Whether native kernels serve these types without torch's, whose sums depend on the batch."""
    return dtype in ("bfloat16", "float32") and cache_dtype in (dtype, "int8", "fp8_e4m3") and head_size % 16 == 0


NATIVE_CPU_OPS = Ops(
    name="native_cpu",
    embedding=native.embedding,
    linear=native.linear,
    logits=native.logits,
    gated_linear=native.gated_linear,
    activate=native.activate,
    multiply_=native_state.multiply_,
    gated_rms_norm=native_state.gated_rms_norm,
    causal_convolution=native_state.causal_convolution,
    gated_delta_rule=native_state.gated_delta_rule,
    state_space=native_state.state_space,
    selective_scan=native_state.selective_scan,
    rg_lru=native_state.rg_lru,
    layer_norm=native.layer_norm,
    rms_norm=native.rms_norm,
    rms_norm_=native.rms_norm_,
    add_rms_norm=native.add_rms_norm,
    experts=native_experts.experts,
    rope_and_cache=native_attention.rope_and_cache,
    write_cache=native_attention.write_cache,
    prepare_attention=native_attention.prepare_attention,
    attention=native_attention.attention,
    mutual_attention=native_attention.mutual_attention,
    copy_blocks=native_attention.copy_blocks,
    swap_blocks=native_attention.swap_blocks,
    pack_weight_=native.pack_weight_,
    unpack_weight_=native.unpack_weight_,
    route=native_experts.route,
    add_=native.add_,
    xielu_=native.xielu_,
    join=native.join,
    scale_=native.scale_,
    scale_by_=native.scale_by_,
    norm_shares_=native.norm_shares_,
    multiply_heads=native_attention.multiply_heads,
    attend_latents=native_latent.attend_latents,
    rotate_=native.rotate_,
    soft_cap_=native.soft_cap_,
    quantize_rows_=quantized_native.quantize_rows_,
    store_rows_=quantized_native.store_rows_,
    store_groups_=quantized_native.store_groups_,
    store_narrow_=quantized_native.store_narrow_,
    quantized_embedding=quantized_native.quantized_embedding,
    quantized_linear=quantized_native.quantized_linear,
    quantized_logits=quantized_native.quantized_logits,
    quantized_gated_linear=quantized_native.quantized_gated_linear,
    forbid_=native_draw.forbid_,
    draw_tokens=native_draw.draw_tokens,
    draw_allowed=native_draw.draw_allowed,
    gate=native.gate,
    add_lora_=native_lora.add_lora_,
    new_digest=NativeDigest,
    is_recordable=True,
    has_state_kernels=True,
    is_batch_invariant=_native_keeps_bits,
)
"""Native kernels on a CPU; usable where `ops.cpu.library.absence()` is None."""


def select_ops(device: str, attention_backend: str = "auto", batch_invariant: bool = False) -> Ops:
    """The fastest version for a device ('cpu', 'cuda'); on a CPU `ops.threads` has the number of its threads.

    Args:
        attention_backend: 'auto': the fastest, 'torch': keys and values are gathered for torch's fused attention,
            'triton': our own kernels, on a GPU.
        batch_invariant: on a GPU, use kernels with `Ops.is_batch_invariant`; on a CPU it has no effect on the choice.

    Raises:
        UnsupportedError: there is no version for the device, or not with that attention.
        ConfigError: see `ops.cpu.library.load_library`.
    """
    if attention_backend not in ("auto", "triton", "torch"):
        raise UnsupportedError(f"there is no attention_backend {attention_backend!r}; use auto, triton or torch")
    if torch.device(device).type != "cpu":
        return _select_gpu_ops(device, attention_backend, batch_invariant)
    if attention_backend == "triton":
        raise UnsupportedError("attention_backend='triton' needs a GPU; on a CPU use auto or torch")
    ops = _select_cpu_ops()
    return _with_torch_attention(ops) if attention_backend == "torch" else ops


def require_batch_invariance(ops: Ops, dtype: str, cache_dtype: str, head_size: int, has_states: bool) -> None:
    """Raises UnsupportedError, with the reason, if `Ops.is_batch_invariant` does not hold.

    `has_states`: of a model with recurrent layers.
    """
    lacks_kernels = has_states and not ops.has_state_kernels
    if ops.is_batch_invariant(dtype, cache_dtype, head_size) and not lacks_kernels:
        return
    if lacks_kernels:
        reason = f"sums of recurrent layers follow the chunks of a prompt in {ops.name}"
    elif ops.name != NATIVE_CPU_OPS.name:
        reason = f"sums follow the batch in {ops.name}"
        reason += f" (native CPU ops are {absence()})" if ops.name == TORCH_CPU_OPS.name else ""
    else:
        reason = f"no native kernels serve {dtype} over a KV cache of {cache_dtype} with a head size of {head_size}"
    raise UnsupportedError(
        f"batch_invariant=True: {reason}; on a CPU it needs the native ops, dtype bfloat16 or float32 and a head size "
        "that is a multiple of 16. Change that, or leave batch_invariant out"
    )


def with_features(ops: Ops, features: frozenset[AttentionFeature]) -> Ops:
    """These ops, with torch's attention if their own lacks a feature that the model needs.

    A version without a feature must never serve a model that needs it: the scores would be wrong without any error.
    """
    missing = features - ops.attention_features
    if not missing:
        return ops
    logger.info("torch's attention serves: that of %s has no %s", ops.name, " and no ".join(sorted(missing)))
    return _with_torch_attention(ops)


def with_collective(ops: Ops, collective: Collective) -> Ops:
    """These ops for a worker that shares its layers with the others of a group."""
    if collective.size == 1:
        return ops
    return dataclasses.replace(ops, all_reduce_=collective.all_reduce_, all_gather=collective.all_gather)


def _with_torch_attention(ops: Ops) -> Ops:
    if ops.name.startswith("triton"):
        from lullm.ops.triton.table import GATHERED_OPS

        return GATHERED_OPS
    return dataclasses.replace(
        ops,
        name=f"{ops.name} with torch's attention",
        prepare_attention=torch_cpu.prepare_attention,
        attention=grouped_attention.attention,
        attend_latents=None,
        is_recordable=False,
        is_batch_invariant=REFERENCE_OPS.is_batch_invariant,
        attention_features=ATTENTION_FEATURES,
    )


def _select_gpu_ops(device: str, attention_backend: str, batch_invariant: bool) -> Ops:
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        raise UnsupportedError(f"there are no ops for device {device!r}: torch sees no such GPU; use device='cpu'")
    try:
        from lullm.ops.triton.table import GATHERED_OPS, INVARIANT_OPS, TRITON_OPS
    except ImportError as error:
        raise UnsupportedError(f"a GPU needs the package triton ({error}); install lullm[triton]") from error
    ops = GATHERED_OPS if attention_backend == "torch" else INVARIANT_OPS if batch_invariant else TRITON_OPS
    logger.info("GPU ops: %s", ops.name)
    return ops


def _select_cpu_ops() -> Ops:
    library = load_library()
    if library is None:
        logger.info("torch's kernels serve instead of native CPU ops: %s", absence())
        return TORCH_CPU_OPS
    native.set_num_threads(default_num_threads())
    logger.info("native CPU ops: %s", library.isa)
    return NATIVE_CPU_OPS
