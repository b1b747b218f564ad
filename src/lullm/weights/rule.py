"""Rules: the map from tensor names of a family's checkpoints to parameters. Data; `weights.target` applies it."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from lullm.types.parallel.stage import PipelineStage
from lullm.weights.encoding.joining import Join


@dataclass(frozen=True, slots=True)
class Rename:
    """Checkpoint names that match `pattern` (a regular expression) are read as `replacement`."""

    pattern: re.Pattern[str]
    replacement: str


def renames(*pairs: tuple[str, str]) -> tuple[Rename, ...]:
    """Renames of these patterns by these replacements."""
    return tuple(Rename(re.compile(pattern), replacement) for pattern, replacement in pairs)


@dataclass(frozen=True, slots=True)
class Fusion:
    """Layers named `parts` in a checkpoint are the parts, in this order, of the FusedLinear named `into`.

    A layer that is named twice fills both parts.
    """

    parts: tuple[str, ...]
    into: str


@dataclass(frozen=True, slots=True)
class Offset:
    """Tensors whose canonical names match `pattern` are read as their values plus `value`, rounded once."""

    pattern: re.Pattern[str]
    value: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Tensors whose canonical names match `pattern` are read as their values times `factor`, rounded once."""

    pattern: re.Pattern[str]
    factor: float


@dataclass(frozen=True, slots=True)
class PartScales:
    """Tensors whose canonical names match `pattern` have parts of these numbers of rows. Each part is read times its
    factor.
    """

    pattern: re.Pattern[str]
    sizes: tuple[int, ...]
    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """One tensor stacks tensors of all modules of a list: its slice i belongs to module i.

    The tensor `PREFIX.modules.name` fills the tensors `PREFIX.modules.i.part` of all i and `parts`.

    Args:
        is_transposed: a slice is a matrix `[in, out]`; its rows are columns here. or_plain: it may be `[out, in]`, too.
        takes_turns: rows of several parts are interleaved; if False, one part comes after the other.
        or_apart: a checkpoint may hold the modules' tensors separately instead.
        num_modules: of the whole list, if a worker has some of it; None: it has all.
    """

    modules: str
    name: str
    parts: tuple[str, ...]
    is_transposed: bool = False
    or_plain: bool = False
    takes_turns: bool = True
    or_apart: bool = False
    num_modules: int | None = None


@dataclass(frozen=True, slots=True)
class HeadOrder:
    """Rows of tensors whose canonical names match `pattern` are read in another order within each head.

    Row `order[i]` of a head in the checkpoint is row i of the parameter's head. A whole table may count as one head.

    Args:
        num_heads: the leading heads with this order; None: all of the tensor.
    """

    pattern: re.Pattern[str]
    order: tuple[int, ...]
    num_heads: int | None = None


def rotated_first(head_dim: int, rotary_dim: int, has_neighbours: bool = False) -> tuple[int, ...]:
    """The order of a head whose first `rotary_dim` elements are rotated, in pairs (i, i + rotary_dim / 2).

    `has_neighbours`: in pairs (2 i, 2 i + 1). The ops rotate pairs (i, i + head_dim / 2). So the two halves of the
    rotated elements become the starts of a head's two halves. Scores are sums over the elements, so the same order of
    queries and keys leaves them unchanged.
    """
    half, rest = rotary_dim // 2, (head_dim - rotary_dim) // 2
    first, second = range(half), range(half, rotary_dim)
    if has_neighbours:
        first, second = range(0, rotary_dim, 2), range(1, rotary_dim, 2)
    return (*first, *range(rotary_dim, rotary_dim + rest), *second, *range(rotary_dim + rest, head_dim))


@dataclass(frozen=True, slots=True)
class WeightRules:
    """All rules of a family.

    Args:
        drops: tensors that a checkpoint may hold and the model does not use.
        transposes: canonical names of matrices that a checkpoint holds as `[in, out]`.
        flattens: canonical names of vectors and tables that a checkpoint holds as `[1, size]` or `[1, rows, size]`.
        elsewhere: canonical names of tensors that other workers have.
        zeros: canonical names of tensors that are zero where a checkpoint lacks them.
        normalizes: canonical names of matrices whose rows are read with the length 1.
    """

    renames: tuple[Rename, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    drops: tuple[re.Pattern[str], ...] = ()
    offsets: tuple[Offset, ...] = ()
    scales: tuple[Scale, ...] = ()
    part_scales: tuple[PartScales, ...] = ()
    head_orders: tuple[HeadOrder, ...] = ()
    transposes: tuple[re.Pattern[str], ...] = ()
    flattens: tuple[re.Pattern[str], ...] = ()
    stacks: tuple[Stack, ...] = ()
    joins: tuple[Join, ...] = ()
    elsewhere: tuple[re.Pattern[str], ...] = ()
    zeros: tuple[re.Pattern[str], ...] = ()
    normalizes: tuple[re.Pattern[str], ...] = ()

    def plus(self, first: tuple[Rename, ...] = (), **more: tuple[Any, ...]) -> "WeightRules":
        """The rules, with more of each named kind behind those that are there; `first`: renames before all others."""
        rules = replace(self, renames=(*first, *self.renames))
        return replace(rules, **{kind: (*getattr(rules, kind), *added) for kind, added in more.items()})

    def canonical_name(self, name: str) -> str:
        """The name after all renames, in order."""
        for rename in self.renames:
            name = rename.pattern.sub(rename.replacement, name)
        return name

    def is_dropped(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self.drops)

    def is_elsewhere(self, name: str) -> bool:
        """Whether other workers have the tensor of this canonical name, and this one does not need it."""
        return any(pattern.search(name) for pattern in self.elsewhere)

    def is_zero(self, name: str) -> bool:
        """Whether the tensor of this canonical name is zero where a checkpoint lacks it."""
        return any(pattern.search(name) for pattern in self.zeros)

    def is_normalized(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self.normalizes)

    def offset_of(self, name: str) -> float:
        """The number added to the tensor of this canonical name."""
        return sum(offset.value for offset in self.offsets if offset.pattern.search(name))

    def scale_of(self, name: str) -> float:
        """The factor on the tensor of this canonical name."""
        return math.prod(scale.factor for scale in self.scales if scale.pattern.search(name))

    def part_scales_of(self, name: str) -> PartScales | None:
        return next((scales for scales in self.part_scales if scales.pattern.search(name)), None)

    def is_transposed(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self.transposes)

    def is_flattened(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self.flattens)

    def head_order_of(self, name: str) -> HeadOrder | None:
        return next((order for order in self.head_orders if order.pattern.search(name)), None)

    def parts_of(self, layer: str) -> tuple[str, ...] | None:
        """The checkpoint's names of the parts of a fused layer; None for a layer that is not fused."""
        for fusion in self.fusions:
            if fusion.into == layer:
                return fusion.parts
        return None


def without_experts(rules: WeightRules, num_experts: int) -> WeightRules:
    """The rules of a worker that has some of `num_experts` experts."""
    return replace(rules, stacks=tuple(replace(stack, num_modules=num_experts) for stack in rules.stacks))


TRAINER_RENAMES = tuple(
    Rename(re.compile(pattern), "")
    for pattern in (
        r"(?<![^.])(_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod)\.",  # wrappers around any module
        r"^module\.",  # data parallel
        r"^base_model\.model\.",  # an adapter around the model ...
        r"\.base_layer(?=\.)",  # ... around a layer, merged into it
        r"(?<![^.])modules_to_save\.default\.",  # ... a layer trained whole
    )
)
"""Trainers' wrappers around a model, which stay in its parameters' names."""


def trainer_name(name: str) -> str:
    """The checkpoint's name of a tensor that a trainer pushes."""
    for rename in TRAINER_RENAMES:
        name = rename.pattern.sub(rename.replacement, name)
    return name


KV_SCALE_RENAMES = (
    Rename(re.compile(r"(?<=\.self_attn)\.(?:attn|qkv_proj|[qkv]_proj)\.(?=(q|k|v|kv|prob)_scale$)"), "."),
    Rename(re.compile(r"(?<=\.self_attn\.)([qkv])_proj\.output_scale$"), r"\1_scale"),
)
"""Names of the scales of an fp8 KV cache in ModelOpt, vLLM and older compressed-tensors checkpoints."""


PICTURES = re.compile(
    r"^(model\.)?(vision_tower|vision_model|vision_encoder|vision_projection|visual|connector|projector|mlp1|"
    r"mlp_AR|image_newline|embed_vision|vision_embedder|embed_tokens_extend\.image_embed)(\.|$)"
)
SOUNDS = re.compile(r"^(model\.)?(audio_tower|embed_audio|embed_tokens_extend\.audio_embed)(\.|$)")
_PROJECTOR = re.compile(r"^(model\.)?multi_modal_projector\.")
_SPEECH = re.compile(r"^(talker|token2wav)\.")
_ADAPTERS = re.compile(r"\.lora_[AB]\.(vision|speech)\.weight$")
TOWER = PICTURES, SOUNDS, _PROJECTOR, _SPEECH, _ADAPTERS
"""Modules in checkpoints of more than text: for pictures, sounds, either of both, for answers that are spoken, and
adapters of Phi-4-multimodal, which it has in folders of their own, too.
"""
THINKER = Rename(re.compile(r"^thinker\."), "")
"""The part of Qwen2.5-Omni that reads and answers, as text."""
LANGUAGE_MODEL_RENAMES = (
    THINKER,
    Rename(re.compile(r"^(model\.)?language_model\.(lm_head|output)\."), r"\2."),
    Rename(re.compile(r"^(model\.)?(language_model|text_model)\.(model\.)?"), "model."),
    Rename(re.compile(r"\.base_layer(?=\.)"), ""),  # around which Phi-4-multimodal has adapters
)
"""Newer and older names of the language model in them."""


def is_beside_text(name: str) -> bool:
    """Whether a checkpoint's tensor of this name is part of a `TOWER`."""
    own = THINKER.pattern.sub(THINKER.replacement, name)
    return any(pattern.search(own) for pattern in TOWER)


def without_tower(rules: WeightRules) -> WeightRules:
    """The rules for checkpoints that also hold modules for more than text, which are skipped."""
    return rules.plus(LANGUAGE_MODEL_RENAMES, drops=TOWER)


def with_part(rules: WeightRules, part: re.Pattern[str]) -> WeightRules:
    """The same for a model that has a `part`, PICTURES or SOUNDS."""
    used = part, _PROJECTOR
    return replace(rules, drops=tuple(pattern for pattern in rules.drops if pattern not in used))


IN_FRONT = re.compile(
    r"^model\.(embed_tokens|embed_norm|embed_positions|project_in|embed_tokens_per_layer|per_layer_model_projection|"
    r"per_layer_projection_norm|altup_projections)\."
)
BEHIND = re.compile(
    r"^(model\.(norm|project_out|altup_unembed_projections)|lm_head|head_(dense|norm)|logit_bias|score)\."
)
"""Canonical names of tensors before all layers, and after them."""


def on_stage(rules: WeightRules, stage: PipelineStage) -> WeightRules:
    """The rules of a stage of a pipeline, which skips the other stages' tensors."""
    if not stage.num_layers:
        return rules
    elsewhere = [
        str(layer) for rank, layers in enumerate(stage.layers_of_all) if rank != stage.rank for layer in layers
    ]
    patterns = [re.compile(rf"^model\.layers\.({'|'.join(elsewhere)})\.")]
    if not stage.is_first:
        patterns.append(IN_FRONT)
    if not stage.is_last:
        patterns.append(BEHIND)
    return replace(rules, elsewhere=tuple(patterns))


_DENSE = re.compile(r"^(score\.)?(\d+_Dense)\.")


def with_dense(rules: WeightRules) -> WeightRules:
    """The same with layers of sentence-transformers, which are the head of what is pooled.

    A checkpoint's names of their tensors begin with their folders.
    """
    return replace(rules, renames=(*rules.renames, Rename(_DENSE, r"score.\2.")))


def dense_modules(names: Iterable[str]) -> list[str]:
    """The folders of such layers among parameters of these names, in order."""
    return list(dict.fromkeys(match[2] for name in names if (match := _DENSE.match(name))))


def decoder_rules(tied: bool, head_dim: int = 0, rotary_dim: int = 0) -> WeightRules:
    """The rules of Llama and of families with its names. Heads that are rotated in part are reordered."""
    drops = [
        re.compile(r"\.rotary_emb\.inv_freq$"),  # computed, yet saved by older checkpoints
        re.compile(r"\.self_attn\.(q|k|v|kv|prob)_scale$"),  # queries are not quantized, nor all KV caches fp8
    ]
    if tied:
        drops.append(re.compile(r"^lm_head\.weight$"))  # a copy of the embedding
    rules = WeightRules(
        renames=(Rename(re.compile(r"^(?=(embed_tokens|layers|norm)\.)"), "model."), *KV_SCALE_RENAMES),  # without head
        fusions=(Fusion(("q_proj", "k_proj", "v_proj"), "qkv_proj"), Fusion(("gate_proj", "up_proj"), "gate_up_proj")),
        drops=tuple(drops),
    )
    if rotary_dim == head_dim:
        return rules
    heads = HeadOrder(re.compile(r"\.self_attn\.[qk]_(proj|norm)\."), rotated_first(head_dim, rotary_dim))
    return replace(rules, head_orders=(heads,))
