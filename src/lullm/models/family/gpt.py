"""GPT-1 and 2 (Radford et al., 2018 and 2019), GPT-Neo (Black et al., 2021), StarCoder 1 and SantaCoder (GPTBigCode,
https://arxiv.org/abs/2305.06161), BioGPT (https://arxiv.org/abs/2210.10341) and OPT (https://arxiv.org/abs/2205.01068):
learned positions, layer norms, biases.

No layer rotates its heads: attention reads a rotary table without rotation. Parameters that the shared decoder has,
too, have its names.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.kv.layout import layer_places
from lullm.models.decoder import new_embedding, new_head
from lullm.models.protocol import Model
from lullm.nn.attention import Attention, AttentionStyle
from lullm.nn.context import StepContext
from lullm.nn.embedding import Embedding
from lullm.nn.linear import Linear
from lullm.nn.mlp import MLP
from lullm.nn.norm import LayerNorm
from lullm.nn.rotary import Rotary
from lullm.ops.table import Ops
from lullm.weights.rule import Fusion, HeadOrder, WeightRules, renames

OPT_UNUSED_POSITIONS = 2
"""The table of positions of OPT and BioGPT starts with two unused rows. They are moved to its end."""


class GPTLayer(nn.Module):
    """One layer. Norms come before attention and MLP, or after the sums (GPT-1, OPT-350m)."""

    def __init__(self, config: ModelConfig, layer: int, group: int, dtype: torch.dtype):
        super().__init__()
        family = config.family
        biases = family.attention_bias, family.has_output_bias
        style = AttentionStyle(scale=family.attention_scale, qkv_bias=biases[0], o_bias=biases[1])
        self.norms_first = family.norms_first
        self.input_layernorm = LayerNorm(config.hidden_size, family.rms_norm_eps, dtype)
        self.self_attn = Attention(config, style, layer, group, dtype)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, family.rms_norm_eps, dtype)
        self.mlp = MLP(config.hidden_size, family.intermediate_size, family.activation, family.mlp_bias, dtype)

    def forward(self, x: Tensor, cos_sin_cache: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """Overwrites `x`."""
        ops = context.ops
        attended = self.self_attn(self.input_layernorm(x, ops) if self.norms_first else x, cos_sin_cache, context)
        ops.all_reduce_(attended)
        ops.add_(x, attended)
        if not self.norms_first:
            x = self.input_layernorm(x, ops)
        fed = self.mlp(self.post_attention_layernorm(x, ops) if self.norms_first else x, ops)
        ops.all_reduce_(fed)
        ops.add_(x, fed)
        return x if self.norms_first else self.post_attention_layernorm(x, ops)


class GPT(nn.Module):
    """From token ids to the head's input: embeddings of tokens and positions, layers, the last norm.

    On a stage of a pipeline as in `Decoder`.
    """

    def __init__(self, config: ModelConfig, num_unused_positions: int, dtype: torch.dtype, max_model_len: int):
        super().__init__()
        if max_model_len > config.max_position_embeddings:
            raise ModelLoadError(
                f"{config.architecture} has learned {config.max_position_embeddings} positions; max_model_len "
                f"({max_model_len}) must not be more"
            )
        family, hidden_size, stage = config.family, config.hidden_size, config.stage
        embedding_size = family.embedding_size or hidden_size
        self.embedding_scale = family.embedding_scale
        if stage.is_first or (stage.is_last and config.ties_head):
            self.embed_tokens = new_embedding(config, embedding_size, dtype)
        self.project_in: Linear | None = None
        self.project_out: Linear | None = None
        if stage.is_first:
            num_positions = config.max_position_embeddings + num_unused_positions
            self.embed_positions = Embedding(num_positions, hidden_size, dtype)
            if embedding_size != hidden_size:
                self.project_in = Linear(embedding_size, hidden_size, False, dtype)
        if stage.is_last and embedding_size != hidden_size:
            self.project_out = Linear(hidden_size, embedding_size, False, dtype)
        groups = [0 if place is None else place.group for place in layer_places(config).places]
        self.layers = nn.ModuleList()
        for layer in config.layers:  # under its number in the model, on every stage
            self.layers.add_module(str(layer), GPTLayer(config, layer, groups[layer], dtype))
        has_norm = family.norms_first and stage.is_last
        self.norm = LayerNorm(hidden_size, family.rms_norm_eps, dtype) if has_norm else None
        self.rotary = Rotary(config, None, max_model_len)

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        ops = context.ops
        x = self._embed(token_ids, context) if context.stream is None else context.stream
        for layer in self.layers:
            x = layer(x, self.rotary.cos_sin_cache, context)
        return x if self.norm is None else self.norm(x, ops)

    def _embed(self, token_ids: Tensor, context: StepContext) -> Tensor:  # [T] -> [T, H]
        ops, embeddings = context.ops, context.input_embeddings
        x = self.embed_tokens(token_ids, ops) if embeddings is None else embeddings.clone()  # layers write over it
        if self.embedding_scale != 1.0 and embeddings is None:
            ops.scale_(x, self.embedding_scale)
        for rows in context.shown:
            rows.put(x)
        if self.project_in is not None:
            x = self.project_in(x, ops)
        ops.add_(x, self.embed_positions(context.positions, ops))
        return x


class GPTCausalLM(Model):
    """A GPT with its head."""

    has_stages = reads_shown = True

    def __init__(self, config: ModelConfig, style: "GPTStyle", dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style.rules)
        self.model = GPT(config, style.num_unused_positions, dtype, max_model_len)
        size = config.family.embedding_size or config.hidden_size
        if config.stage.is_last:
            self.lm_head = new_head(config, size, dtype)

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        """See `Model.forward`."""
        hidden: Tensor = self.model(token_ids, context)
        return hidden

    def compute_logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `Model.compute_logits`."""
        embedding = getattr(self.model, "embed_tokens", None)
        return self.lm_head(self._projected(hidden, ops), embedding, ops)

    def pool(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `Model.pool`."""
        return self._projected(hidden, ops).float()

    def _projected(self, hidden: Tensor, ops: Ops) -> Tensor:
        projected: Tensor = hidden if self.model.project_out is None else self.model.project_out(hidden, ops)
        return projected


@dataclass(frozen=True, slots=True)
class GPTStyle:
    """The differences of a family. `num_unused_positions`: rows of the table of positions that no token has."""

    rules: WeightRules
    num_unused_positions: int = 0

    def build(self, config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> GPTCausalLM:
        """See `registry.Style`."""
        return GPTCausalLM(config, self, dtype, max_model_len)


def _drops(config: ModelConfig, *patterns: str) -> tuple[re.Pattern[str], ...]:
    tied = (r"^lm_head\.weight$",) if config.ties_head else ()  # a copy of the embedding
    return tuple(re.compile(pattern) for pattern in (*patterns, *tied))


_GPT2_RENAMES = (
    (r"^transformer\.", ""),
    (r"^(?=(wte|wpe|h|ln_f)\.)", "model."),
    (r"^model\.wte\.", "model.embed_tokens."),
    (r"^model\.wpe\.", "model.embed_positions."),
    (r"^model\.ln_f\.", "model.norm."),
    (r"^model\.h\.", "model.layers."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.ln_2\.", ".post_attention_layernorm."),
    (r"\.attn\.c_attn\.", ".self_attn.qkv_proj."),
    (r"\.attn\.c_proj\.", ".self_attn.o_proj."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
)
_SAVED_MASKS = r"\.attn\.(attention\.)?(masked_)?bias$"
"""The causal mask, saved by older checkpoints."""


def gpt2_style(config: ModelConfig) -> GPTStyle:
    rules = WeightRules(
        renames=renames(*_GPT2_RENAMES),
        drops=_drops(config, _SAVED_MASKS),
        transposes=(re.compile(r"\.(qkv_proj|o_proj|fc1|fc2)\.weight$"),),
    )
    return GPTStyle(rules)


def gpt1_style(config: ModelConfig) -> GPTStyle:
    names = ((r"(?<![^.])tokens_embed\.", "wte."), (r"(?<![^.])positions_embed\.", "wpe."))
    rules = WeightRules(
        renames=renames(*names, *_GPT2_RENAMES),
        drops=_drops(config, _SAVED_MASKS, r"^(transformer\.)?position_ids$"),
        transposes=(re.compile(r"\.(qkv_proj|o_proj|fc1|fc2)\.weight$"),),
    )
    return GPTStyle(rules)


def gpt_bigcode_style(config: ModelConfig) -> GPTStyle:
    """With one key head all queries come first in a checkpoint; else query, key and value of a head are together."""
    num_heads, size = config.num_attention_heads, config.head_dim
    orders: tuple[HeadOrder, ...] = ()
    if config.num_key_value_heads > 1:
        starts = [(3 * head + part) * size for part in range(3) for head in range(num_heads)]
        rows = tuple(start + row for start in starts for row in range(size))
        orders = (HeadOrder(re.compile(r"\.qkv_proj\."), rows),)
    rules = WeightRules(renames=renames(*_GPT2_RENAMES), drops=_drops(config, _SAVED_MASKS), head_orders=orders)
    return GPTStyle(rules)


def gpt_neo_style(config: ModelConfig) -> GPTStyle:
    names = ((r"\.attn\.attention\.out_proj\.", ".self_attn.o_proj."), (r"\.attn\.attention\.", ".self_attn."))
    rules = WeightRules(
        renames=renames(*names, *_GPT2_RENAMES),
        fusions=(Fusion(("q_proj", "k_proj", "v_proj"), "qkv_proj"),),
        drops=_drops(config, _SAVED_MASKS, r"\.self_attn\.(masked_)?bias$"),
    )
    return GPTStyle(rules)


def _used_first(num_positions: int) -> tuple[int, ...]:
    """The order of OPT's positions: row i is for position i."""
    return (*range(OPT_UNUSED_POSITIONS, num_positions + OPT_UNUSED_POSITIONS), *range(OPT_UNUSED_POSITIONS))


def opt_style(config: ModelConfig) -> GPTStyle:
    names = (
        (r"^(?=decoder\.)", "model."),
        (r"^model\.decoder\.final_layer_norm\.", "model.norm."),
        (r"^model\.decoder\.", "model."),
    )
    return _opt_style(config, names)


def biogpt_style(config: ModelConfig) -> GPTStyle:
    names = (
        (r"^(biogpt\.)?(?=(embed_tokens|embed_positions|layers|layer_norm)\.)", "model."),
        (r"^model\.layer_norm\.", "model.norm."),
        (r"^output_projection\.", "lm_head."),
    )
    return _opt_style(config, names)


def _opt_style(config: ModelConfig, names: tuple[tuple[str, str], ...]) -> GPTStyle:
    rules = WeightRules(
        renames=renames(
            *names,
            (r"\.self_attn_layer_norm\.", ".input_layernorm."),
            (r"\.final_layer_norm\.", ".post_attention_layernorm."),
            (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
            (r"(?<=\.)(?=fc[12]\.)", "mlp."),
        ),
        fusions=(Fusion(("q_proj", "k_proj", "v_proj"), "qkv_proj"),),
        drops=_drops(config),
        head_orders=(HeadOrder(re.compile(r"\.embed_positions\."), _used_first(config.max_position_embeddings)),),
    )
    return GPTStyle(rules, OPT_UNUSED_POSITIONS)
