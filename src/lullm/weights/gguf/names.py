"""The checkpoint's names of a GGUF file's tensors, and the shapes that differ there."""

import math
import re
from collections.abc import Container, Mapping

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "shortconv.conv": "conv.conv1d",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
_KIMI_DELTA = {
    **{f"ssm_conv1d_{each}": f"self_attn.{each}_conv1d" for each in "qkv"},
    **{f"ssm_{gate}_{part}": f"self_attn.{gate}_{part}_proj" for gate in "fg" for part in "ab"},
    "ssm_beta": "self_attn.b_proj",
    "ssm_norm": "self_attn.o_norm",
    "ssm_a": "self_attn.A_log",
    "ssm_dt.bias": "self_attn.dt_bias",
}
_SPACE = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
    "ssm_x": "mamba.x_proj",
    "ssm_dt": "mamba.dt_proj",
    "ssm_dt_norm": "mamba.dt_layernorm",
    "ssm_b_norm": "mamba.b_layernorm",
    "ssm_c_norm": "mamba.c_layernorm",
}
_DELTA_NET = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_WHOLE = {
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_inp.scale": "router.scale",
    "layer_output_scale.weight": "layer_scalar",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ssm_a": "*.A_log",
    "ssm_d": "*.D",
    "ssm_dt.bias": "*.dt_bias",
}
"""Names whose last word differs from the checkpoint's; '*': the layer's recurrent part."""
_GEMMA = {"ffn_norm": "pre_feedforward_layernorm"}
_LAYER_INPUTS = {
    **_GEMMA,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_GEMMA3N = {
    **_LAYER_INPUTS,
    "altup_proj": "model.altup_projections.*",
    "altup_unembd_proj": "model.altup_unembed_projections.*",
    "altup_correct_coef": "altup.correction_coefs",
    "altup_correct_scale.weight": "altup.correct_output_scale",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
_GEMMA4 = {
    **_LAYER_INPUTS,
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_exps": "experts.*.gate_proj",
    "ffn_up_exps": "experts.*.up_proj",
    "ffn_gate_up_exps": "experts.*.gate_up_proj",
    "ffn_down_exps": "experts.*.down_proj",
}
_LABELS = {
    "cls": "head.dense",
    "cls.norm": "head.norm",
    "cls.output.weight": "head.labels.weight",
    "cls.output.bias": "head.bias",
}
"""The names of heads, in encoders with labels."""
_SEGMENTS = {"token_embd_norm": "model.embed_norm", "token_types": "model.embed_segments"}
_NORMS_BEHIND = {
    **_SEGMENTS,
    "attn_output_norm": "input_layernorm",
    "layer_output_norm": "post_attention_layernorm",
}
_NEMOTRON_H = {**_SPACE, "ffn_up": "feed_forward.fc1", "ffn_down": "feed_forward.fc2"}
_TWO_LAYERS = {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
_TWO_NORMS = {"attn_norm": "post_attention_layernorm", "attn_norm_2": "input_layernorm"}
"""For Falcon 40B, whose MLP has its own norm."""
_OF_ARCHITECTURE: dict[str, Mapping[str, str]] = {
    "apertus": _TWO_LAYERS,
    "arcee": _TWO_LAYERS,
    "bert": {**_NORMS_BEHIND, **_LABELS, **_TWO_LAYERS, "position_embd": "model.embed_positions"},
    "bloom": {**_TWO_LAYERS, "token_embd_norm": "model.embed_norm"},
    "deepseek2": _LATENT,
    "falcon": _TWO_LAYERS,
    "falcon-h1": {**_SPACE, "ffn_norm": "post_attention_layernorm.weight"},
    "gemma-embedding": {**_GEMMA, "dense_2": "2_Dense.linear", "dense_3": "3_Dense.linear"},
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "gemma3n": _GEMMA3N,
    "gemma4": _GEMMA4,
    "glm4": {
        "ffn_up": "mlp.gate_up_proj",
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    "gpt-oss": {"ffn_gate_inp": "mlp.router"},
    "gpt2": {**_TWO_LAYERS, "position_embd": "model.embed_positions"},
    "gptneox": _TWO_LAYERS,
    "granitehybrid": _SPACE,
    "jamba": _SPACE,
    "kimi-linear": {**_LATENT, **_KIMI_DELTA},
    "lfm2": {"token_embd_norm": "model.norm"},
    "lfm2moe": {"token_embd_norm": "model.norm"},
    "mamba": _SPACE,
    "mamba2": _SPACE,
    "modern-bert": {**_SEGMENTS, **_LABELS, "ffn_up": "mlp.gate_up_proj"},
    "mpt": _TWO_LAYERS,
    "nemotron": _TWO_LAYERS,
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": {
        **_NEMOTRON_H,
        "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
        "ffn_gate_inp": "mixer.gate",
        "ffn_up_exps": "mixer.experts.*.up_proj",
        "ffn_down_exps": "mixer.experts.*.down_proj",
        "ffn_up_shexp": "mixer.shared_experts.up_proj",
        "ffn_down_shexp": "mixer.shared_experts.down_proj",
        "ffn_latent_down": "mixer.fc1_latent_proj",
        "ffn_latent_up": "mixer.fc2_latent_proj",
    },
    "nomic-bert": {**_SEGMENTS, "attn_output_norm": "norm1", "layer_output_norm": "norm2"},
    "phi2": _TWO_LAYERS,
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "qwen3": {"cls.output": "score"},
    "qwen35": _DELTA_NET,
    "qwen35moe": _DELTA_NET,
    "qwen3next": _DELTA_NET,
    "starcoder": {**_TWO_LAYERS, "position_embd": "model.embed_positions"},
    "starcoder2": _TWO_LAYERS,
}
"""Differences from the names above."""
_NOT_WEIGHTS = re.compile(r"^(rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.nextn\..*)$")
"""Tensors that are read with the config, or that only draft tokens."""
_LAYER = re.compile(r"^blk\.(\d{1,9})\.(.+)$")
_FILTERS = re.compile(r"^blk\.\d+\.(shortconv\.conv|ssm_conv1d(_[qkv])?)\.weight$")
"""Filters of convolutions, one per channel."""
_VECTORS = re.compile(r"^blk\.\d+\.(ssm_d|ssm_norm\.weight)$")
"""Vectors that a file may hold as a matrix."""
_DECAYS = re.compile(r"^blk\.\d+\.ssm_a$")
"""Decays of a head, or of each state of a channel (Mamba 1)."""


class Names:
    """The names of one architecture. tensors: of the file."""

    def __init__(self, architecture: str, tensors: Container[str]):
        self._own = _OF_ARCHITECTURE.get(architecture, {})
        if architecture == "falcon" and "blk.0.attn_norm_2.weight" in tensors:
            self._own = {**self._own, **_TWO_NORMS}
        self._recurrent = "linear_attn" if self._own is _DELTA_NET else "mamba"

    def of(self, name: str) -> str | None:
        """The checkpoint's name of a tensor; '*': a number, if the tensor stacks all numbers. None: no weight."""
        if _NOT_WEIGHTS.match(name):
            return None
        layer = _LAYER.match(name)
        rest = layer[2] if layer else name
        prefix = f"model.layers.{layer[1]}." if layer else ""
        if whole := self._own.get(rest) or (layer and _WHOLE.get(rest)):
            return prefix + whole.replace("*", self._recurrent)
        stem, _, last = rest.rpartition(".")
        known = self._own.get(stem) or (_IN_LAYER if layer else _TOP).get(stem)
        return name if known is None else f"{prefix}{known}.{last}"


def checkpoint_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The checkpoint's shape of a file's tensor of this name."""
    if shape and _FILTERS.match(name):
        return math.prod(shape[:-1]), 1, shape[-1]
    is_vector = _VECTORS.match(name) or _DECAYS.match(name) and shape[-1] == 1
    return (math.prod(shape),) if is_vector else shape
