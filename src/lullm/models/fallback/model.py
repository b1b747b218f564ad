"""ForeignModel: a causal model of `transformers` as a worker's `Model`, over the paged cache and lullm's attention."""

import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.kv.cache_group import cache_layout
from lullm.models.fallback.blueprint import Blueprint, draw_blueprint, installed
from lullm.models.protocol import Model
from lullm.nn.context import StepContext
from lullm.nn.linear import meta_parameter
from lullm.ops.attention_layout import CausalScores
from lullm.ops.table import Ops
from lullm.weights.rule import Rename, WeightRules

PAGED = "lullm_paged"
"""The name of the attention over the paged cache. `transformers` makes no masks for a name that it has none for."""


class _Steps:
    """The running step, for the layers of one model."""

    def __init__(self) -> None:
        self.context: StepContext | None = None


class _PagedLayer:
    """The place of one attention module: its layer and KV cache group."""

    def __init__(self, steps: _Steps, layer: int, group: int, head_dim: int):
        self.steps, self.layer, self.group, self.head_dim = steps, layer, group, head_dim

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, soft_cap: float | None, sinks: Tensor | None
    ) -> Tensor:
        """Write rows `[1, heads, T, size]` to the cache and attend: `[1, T, Hq, size of a value]`."""
        context = self.steps.context
        assert context is not None, "layers run within a step"
        ops, prepared, cache = context.ops, context.attention[self.group], context.caches[self.layer]
        kv = torch.cat((self._rows(key), self._rows(value)), dim=1)  # [T, 2 * Hkv, D]
        ops.write_cache(kv, cache, prepared.slot_mapping)
        scores = CausalScores(scale, soft_cap, None if sinks is None else sinks.float())
        out = ops.attention(self._rows(query).contiguous(), cache, prepared, scores)  # [T, Hq, D]
        return out[..., : value.shape[-1]].unsqueeze(0)

    def _rows(self, heads: Tensor) -> Tensor:
        """`[1, heads, T, size]` as `[T, heads, D]`; zeros behind a smaller head change no score."""
        rows = heads.squeeze(0).transpose(0, 1)
        return F.pad(rows, (0, self.head_dim - rows.shape[-1])) if rows.shape[-1] < self.head_dim else rows


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention for transformers' layers; the blueprint has refused other options."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    place: _PagedLayer = module.lullm_place
    return place.attend(query, key, value, scale, softcap, s_aux), None


class _Given(nn.Module):
    """Replaces the inner model and returns given hidden states, so that the rest computes logits."""

    def __init__(self) -> None:
        super().__init__()
        self.output: Any = None

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self.output


class ForeignModel(Model):
    """The causal model's children under their own names, so that parameters have those of a checkpoint."""

    def __init__(self, config: ModelConfig, blueprint: Blueprint, rules: WeightRules):
        super().__init__(config, rules)
        causal, prefix = blueprint.causal, blueprint.prefix
        self.steps = _Steps()
        modules = dict(causal.named_modules())
        for layer, (call, place) in enumerate(
            zip(blueprint.calls, cache_layout(config.layer_kinds).places, strict=True)
        ):
            assert place is not None, "every layer has attention"
            modules[call.module].lullm_place = _PagedLayer(self.steps, layer, place.group, config.head_dim)
        for name, child in list(causal.named_children()):
            self.add_module(name, child)
        self._inner = getattr(causal, prefix).forward
        self._given = (_Given(),)
        self._new_output: Any = None  # the type of the inner model's output
        setattr(causal, prefix, self._given[0])
        self._causal = (causal,)  # in a tuple: no submodule, its children are

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        """See `Model.forward`."""
        self.steps.context = context
        try:
            output = self._inner(input_ids=token_ids[None], position_ids=context.positions[None], use_cache=False)
        finally:
            self.steps.context = None
        self._new_output, hidden = type(output), output[0][0]
        return hidden

    def compute_logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `Model.compute_logits`."""
        self._given[0].output = self._new_output(last_hidden_state=hidden[None])
        try:
            logits: Tensor = self._causal[0](inputs_embeds=hidden[None], use_cache=False).logits[0]
        finally:
            self._given[0].output = None
        return logits.float()


def build_foreign(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> ForeignModel:
    """The model of a config with `foreign`, its parameters on the meta device, its computed tensors on the CPU.

    Raises:
        ModelLoadError: as `draw_blueprint`; its rope depends on the length of a sequence; a computed tensor is lost.
    """
    assert config.foreign is not None, "a config of transformers"
    blueprint = draw_blueprint(config.foreign, dtype)
    _check_rope(blueprint.config, max_model_len)
    installed().AttentionInterface.register(PAGED, paged_attention)
    causal = blueprint.causal
    causal.set_attn_implementation(PAGED)
    for module in causal.modules():
        module.__dict__.pop("lullm_notes", None)
    for name, module in causal.named_modules():
        _fill_buffers(causal, module, name)
    _keep_wide(causal, dtype)
    return ForeignModel(config, blueprint, _rules(blueprint))


def _check_rope(theirs: Any, max_model_len: int) -> None:
    """Keys in a cache are rotated once, so the rotation must not depend on the length of a sequence."""
    parameters = getattr(theirs, "rope_parameters", None) or {}
    nested = [entry for entry in parameters.values() if isinstance(entry, dict)]
    for entry in nested or [parameters]:
        trained = entry.get("original_max_position_embeddings") or getattr(
            theirs, "original_max_position_embeddings", None
        )
        if entry.get("rope_type") == "longrope" and max_model_len > (trained or theirs.max_position_embeddings):
            raise ModelLoadError(
                f"transformers changes the rotation (longrope) beyond {trained} tokens, and cached keys are rotated "
                f"once; set max_model_len to at most {trained}"
            )


def _fill_buffers(causal: Any, module: nn.Module, name: str) -> None:
    """Give a module's computed tensors memory and numbers; saved ones become parameters, which a checkpoint fills.

    `transformers` computes them anew, as after its own loading. Each is computed over two contents: elements that
    differ afterwards were not computed.
    """
    computed: dict[str, Tensor] = {}
    for last, buffer in list(module.named_buffers(recurse=False)):
        if last in module._non_persistent_buffers_set:
            computed[last] = buffer
        else:
            del module._buffers[last]
            module.register_parameter(last, meta_parameter(tuple(buffer.shape), buffer.dtype))
    found: list[list[Tensor]] = []
    for content in (0, 1) if computed else ():
        for last, buffer in computed.items():
            module._buffers[last] = torch.full(buffer.shape, content, dtype=buffer.dtype, device="cpu")
        with torch.no_grad():
            causal._init_weights(module)
        found.append([module._buffers[last] for last in computed])  # type: ignore[misc]
    for last, *contents in zip(computed, *found, strict=True):
        if not torch.equal(*contents):
            raise ModelLoadError(f"{name}.{last} of {type(causal).__name__} is neither computed nor in a checkpoint")


def _keep_wide(causal: Any, dtype: torch.dtype) -> None:
    """Keep some parameters in float32 with smaller types, as transformers does."""
    wide = set(causal._keep_in_fp32_modules_strict or ())
    if dtype == torch.float16:
        wide |= set(causal._keep_in_fp32_modules or ())
    for name, module, last, parameter in _parameters(causal):
        if parameter.dtype == dtype and wide.intersection(f"{name}.{last}".split(".")):
            module.register_parameter(last, meta_parameter(tuple(parameter.shape), torch.float32))


def _parameters(causal: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    for name, module in list(causal.named_modules()):
        for last, parameter in list(module.named_parameters(recurse=False)):
            yield name, module, last, parameter


def _rules(blueprint: Blueprint) -> WeightRules:
    """The rules: a checkpoint's names are those of the parameters, or lack the name of the inner model."""
    causal, prefix = blueprint.causal, blueprint.prefix
    inner = "|".join(re.escape(name) for name, _ in getattr(causal, prefix).named_children())
    seen: set[nn.Parameter] = set()
    drops = [re.compile(r"\.rotary_emb\.inv_freq$")]
    for name, _, last, parameter in _parameters(causal):
        if parameter in seen:
            drops.append(re.compile(rf"^{re.escape(f'{name}.{last}')}$"))
        seen.add(parameter)
    without_prefix = Rename(re.compile(rf"^(?=(?:{inner})\.)"), f"{prefix}.")
    return WeightRules(renames=(*blueprint.renames, without_prefix), drops=tuple(drops))
