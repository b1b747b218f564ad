"""GPT-1 and 2 (Radford et al., 2018 and 2019), GPT-Neo (Black et al., 2021), StarCoder 1 and SantaCoder (GPTBigCode,
https://arxiv.org/abs/2305.06161), BioGPT (https://arxiv.org/abs/2210.10341) and OPT (https://arxiv.org/abs/2205.01068):
learned positions, layer norms, biases.

No layer rotates its heads: attention reads a rotary table without rotation. Parameters that the shared decoder has,
too, have its names.
"""

import re
from functools import partial

import torch
from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, Decoder, DecoderStyle, plain_mlp
from lullm.models.encoder_only import PostNormLayer
from lullm.models.family.layer_norm.parallel import layer_norm
from lullm.models.rules import used_first
from lullm.nn.context import StepContext
from lullm.nn.embedding import PositionEmbedding, new_embedding, new_head
from lullm.nn.linear import Linear
from lullm.ops.table import Ops
from lullm.weights.rule import Fusion, HeadOrder, WeightRules, renames

OPT_UNUSED_POSITIONS = 2
"""The table of positions of OPT and BioGPT starts with two unused rows. They are moved to its end."""


class GPT(Decoder):
    """A decoder with learned positions. Its embedding may be narrower than its rows, between two projections."""

    def __init__(
        self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int, num_unused: int = 0
    ):
        super().__init__(config, style, dtype, max_model_len)
        hidden_size, stage = config.hidden_size, config.stage
        size = config.family.embedding_size or hidden_size
        self.norms_first = config.family.norms_first
        self.embedding_scale = config.family.embedding_scale  # not rounded, as transformers' is not
        self.project_in: Linear | None = None
        if stage.is_first:
            num_rows = config.max_position_embeddings + num_unused
            self.embed_positions = PositionEmbedding(config, num_rows, hidden_size, dtype, max_model_len)
        if stage.is_last and not self.norms_first:
            del self.norm
        if size == hidden_size:
            return
        if hasattr(self, "embed_tokens"):
            self.embed_tokens = new_embedding(config, size, dtype)
        if stage.is_first:
            self.project_in = Linear(size, hidden_size, False, dtype)
        if stage.is_last:
            self.project_out = Linear(hidden_size, size, False, dtype)

    def run(self, hidden: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """See `Decoder.run`."""
        return super().run(hidden, context) if self.norms_first else self.run_layers(hidden, context)[0]

    def add_places(self, hidden: Tensor, context: StepContext) -> Tensor:  # [T, size] -> [T, H]
        """Learned positions, to rows that are as wide as those of the layers."""
        ops = context.ops
        if self.project_in is not None:
            hidden = self.project_in(hidden, ops)
        ops.add_(hidden, self.embed_positions(context.positions, ops))
        return hidden


class GPTCausalLM(CausalLM):
    """A GPT with its head, which is as wide as the embedding."""

    has_pooling_heads = False

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        if config.stage.is_last and config.family.embedding_size is not None:
            self.lm_head = new_head(config, config.family.embedding_size, dtype)

    def compute_logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `Model.compute_logits`."""
        return super().compute_logits(self._projected(hidden, ops), ops)

    def pool(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `Model.pool`."""
        return self._projected(hidden, ops).float()

    def _projected(self, hidden: Tensor, ops: Ops) -> Tensor:
        project_out: Linear | None = getattr(self.model, "project_out", None)
        return hidden if project_out is None else project_out(hidden, ops)


def _style(config: ModelConfig, rules: WeightRules, num_unused: int = 0) -> DecoderStyle:
    """`num_unused`: rows of the table of positions that no token has."""
    return DecoderStyle(
        rules,
        make_norm=layer_norm,
        make_mlp=plain_mlp,
        make_layer=None if config.family.norms_first else PostNormLayer,
        make_decoder=partial(GPT, num_unused=num_unused),
        make_model=GPTCausalLM,
    )


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


def gpt2_style(config: ModelConfig) -> DecoderStyle:
    rules = WeightRules(
        renames=renames(*_GPT2_RENAMES),
        drops=_drops(config, _SAVED_MASKS),
        transposes=(re.compile(r"\.(qkv_proj|o_proj|fc1|fc2)\.weight$"),),
    )
    return _style(config, rules)


def gpt1_style(config: ModelConfig) -> DecoderStyle:
    names = ((r"(?<![^.])tokens_embed\.", "wte."), (r"(?<![^.])positions_embed\.", "wpe."))
    rules = WeightRules(
        renames=renames(*names, *_GPT2_RENAMES),
        drops=_drops(config, _SAVED_MASKS, r"^(transformer\.)?position_ids$"),
        transposes=(re.compile(r"\.(qkv_proj|o_proj|fc1|fc2)\.weight$"),),
    )
    return _style(config, rules)


def gpt_bigcode_style(config: ModelConfig) -> DecoderStyle:
    """With one key head all queries come first in a checkpoint; else query, key and value of a head are together."""
    num_heads, size = config.num_attention_heads, config.head_dim
    orders: tuple[HeadOrder, ...] = ()
    if config.num_key_value_heads > 1:
        starts = [(3 * head + part) * size for part in range(3) for head in range(num_heads)]
        rows = tuple(start + row for start in starts for row in range(size))
        orders = (HeadOrder(re.compile(r"\.qkv_proj\."), rows),)
    rules = WeightRules(renames=renames(*_GPT2_RENAMES), drops=_drops(config, _SAVED_MASKS), head_orders=orders)
    return _style(config, rules)


def gpt_neo_style(config: ModelConfig) -> DecoderStyle:
    names = ((r"\.attn\.attention\.out_proj\.", ".self_attn.o_proj."), (r"\.attn\.attention\.", ".self_attn."))
    rules = WeightRules(
        renames=renames(*names, *_GPT2_RENAMES),
        fusions=(Fusion(("q_proj", "k_proj", "v_proj"), "qkv_proj"),),
        drops=_drops(config, _SAVED_MASKS, r"\.self_attn\.(masked_)?bias$"),
    )
    return _style(config, rules)


def opt_style(config: ModelConfig) -> DecoderStyle:
    names = (
        (r"^(?=decoder\.)", "model."),
        (r"^model\.decoder\.final_layer_norm\.", "model.norm."),
        (r"^model\.decoder\.", "model."),
    )
    return _opt_style(config, names)


def biogpt_style(config: ModelConfig) -> DecoderStyle:
    names = (
        (r"^(biogpt\.)?(?=(embed_tokens|embed_positions|layers|layer_norm)\.)", "model."),
        (r"^model\.layer_norm\.", "model.norm."),
        (r"^output_projection\.", "lm_head."),
    )
    return _opt_style(config, names)


def _opt_style(config: ModelConfig, names: tuple[tuple[str, str], ...]) -> DecoderStyle:
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
        head_orders=(used_first(OPT_UNUSED_POSITIONS, config.max_position_embeddings + OPT_UNUSED_POSITIONS),),
    )
    return _style(config, rules, OPT_UNUSED_POSITIONS)
