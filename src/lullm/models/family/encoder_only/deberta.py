"""DeBERTa 2 and 3 (https://arxiv.org/abs/2006.03654, https://arxiv.org/abs/2111.09543): a score is a query times a key,
and the query times the key of their distance, and the key times the query of their distance. Distances have learned
rows, the same in all layers.
"""

import functools
import re
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.layer.disentangled import DisentangledConfig
from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, LayerSpec
from lullm.models.encoder_only import Encoder
from lullm.models.family.encoder_only.bert import BERT_NAMES, bert_style, encoder_rules
from lullm.models.family.layer_norm.parallel import layer_norm
from lullm.nn.attention import AttentionStyle, EncoderOnlySelfAttention
from lullm.nn.context import StepContext
from lullm.nn.linear import Linear, meta_parameter
from lullm.ops.attention_layout import CausalScores, MutualScores
from lullm.ops.table import Ops


def _disentangled(config: ModelConfig) -> DisentangledConfig:
    encoder = config.family.encoder_only
    assert encoder is not None and encoder.disentangled is not None, "of a family with scores by distance"
    return encoder.disentangled


@functools.cache
def _rows_of_distances(config: DisentangledConfig, length: int) -> Tensor:  # [length]
    """The number of a distance's row, beside that of distance 0."""
    distances = torch.arange(length, device="cpu")
    exact = config.num_exact
    if exact >= config.farthest - 1:
        return distances.clamp(max=config.num_distances)
    share = torch.log(distances.clamp(min=1) / exact) / torch.log(torch.tensor((config.farthest - 1) / exact))
    wide = torch.ceil(share * (exact - 1)).to(torch.int64) + exact
    return torch.where(distances <= exact, distances, wide).clamp(max=config.num_distances)


def _slice(rows_of_distances: Tensor, length: int, num_distances: int) -> slice:
    """The rows of distances to both sides that a text of this length has."""
    farthest = int(rows_of_distances[length - 1])
    return slice(num_distances - farthest, min(num_distances + farthest, 2 * num_distances - 1) + 1)


class DisentangledAttention(EncoderOnlySelfAttention):
    """Attention that reads the rows of distances beside those of tokens. It has no adapters: they would change both.

    A text is computed by itself, so that its bits do not depend on others.
    """

    rows_of_distances: Tensor

    def __init__(self, config: ModelConfig, style: AttentionStyle, layer: int, group: int, dtype: torch.dtype):
        super().__init__(config, style, layer, group, dtype)
        self.config = _disentangled(config)
        for score in () if self.config.is_shared else sorted(self.config.scores):
            project = Linear(config.hidden_size, config.num_attention_heads * self.head_dim, True, dtype)
            self.add_module("pos_key_proj" if score == "c2p" else "pos_query_proj", project)
        rows = _rows_of_distances(self.config, config.max_position_embeddings)
        self.register_buffer("rows_of_distances", rows, persistent=False)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, lens, rows = context.ops, context.query_lens, context.distances
        assert rows is not None, "the encoder has made them"
        q, k, v = self._heads(x, ops)
        keys, queries = self._heads_of_distances(rows, ops)
        first_row = _slice(self.rows_of_distances, max(lens), self.config.num_distances).start
        out, first = q.new_empty(q.shape), 0
        for length in lens:
            own = slice(first, first + length)
            used = _slice(self.rows_of_distances, length, self.config.num_distances)
            own_rows = slice(used.start - first_row, used.stop - first_row)
            places = self._places(length, used)
            bias: Tensor | float = 0.0
            if keys is not None:
                bias = _by_distance(q[own], keys[own_rows], places)
            if queries is not None:
                bias = bias + _by_distance(k[own], queries[own_rows], places.T).transpose(1, 2)
            assert isinstance(bias, Tensor), "a model has one of both at least"
            scores = MutualScores(self.scores.scale, None, bias * self.scores.scale)
            out[own] = ops.mutual_attention(q[own], k[own], v[own], [length], scores)
            first += length
        return self.o_proj(out.flatten(1), ops)

    def _heads(self, x: Tensor, ops: Ops) -> tuple[Tensor, Tensor, Tensor]:  # [T, H] -> [T, Hq, D] each
        queries, keys, values = self.project(x, ops).unflatten(-1, (-1, self.head_dim)).chunk(3, dim=1)
        return queries, keys, values

    def _heads_of_distances(self, rows: Tensor, ops: Ops) -> tuple[Tensor | None, Tensor | None]:
        """Their keys and queries `[R, Hq, D]`; None: not added to scores."""
        if self.config.is_shared:
            queries, keys, _ = self._heads(rows, ops)
            scores = self.config.scores
            return keys if "c2p" in scores else None, queries if "p2c" in scores else None
        found = []
        for name in ("pos_key_proj", "pos_query_proj"):
            project = getattr(self, name, None)
            found.append(None if project is None else project(rows, ops).unflatten(-1, (-1, self.head_dim)))
        return found[0], found[1]

    def _places(self, length: int, used: slice) -> Tensor:  # [length, length]
        """Which of the used rows belongs to a token (rows) and what it sees (columns)."""
        places = torch.arange(length, device=self.rows_of_distances.device)
        distances = places[:, None] - places[None, :]
        rows = self.rows_of_distances[distances.abs()] * distances.sign() + self.config.num_distances
        return rows.clamp(max=used.stop - 1) - used.start


def _by_distance(x: Tensor, of_distances: Tensor, places: Tensor) -> Tensor:  # [L, Hq, D], [R, Hq, D] -> [Hq, L, L]
    """The products of a token's rows with those of its distances."""
    products = torch.matmul(x.transpose(0, 1), of_distances.permute(1, 2, 0))  # [Hq, L, R]
    return products.gather(2, places.expand(len(products), -1, -1))


class NeighbourSum(nn.Module):
    """A convolution over the tokens of each text, added to the result of the first layer."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype):
        super().__init__()
        own, size = _disentangled(config), config.hidden_size
        self.activation = own.activation
        self.weight = meta_parameter((size, size, own.width), dtype)
        self.bias = meta_parameter((size,), dtype)
        self.norm = layer_norm(config, dtype)

    def forward(self, embedded: Tensor, hidden: Tensor, context: StepContext) -> Tensor:  # [T, H] each -> [T, H]
        ops, padding = context.ops, self.weight.shape[2] // 2
        texts = embedded.split(list(context.query_lens))
        found = [functional.conv1d(text.T[None], self.weight, self.bias, padding=padding)[0].T for text in texts]
        out, _ = self.norm.add(ops.activate(torch.cat(found), self.activation), hidden, ops)
        return out


class DebertaEncoder(Encoder):
    """An encoder with rows of distances."""

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        self.config = own = _disentangled(config)
        self.distances = meta_parameter((2 * own.num_distances, config.hidden_size), dtype)
        self.distance_norm = layer_norm(config, dtype) if own.norms_rows else None
        self.neighbours = NeighbourSum(config, dtype) if own.width else None
        self.max_len = config.max_position_embeddings

    def run_layers(self, hidden: Tensor, context: StepContext) -> tuple[Tensor, Tensor | None]:
        """See `Decoder.run_layers`."""
        of_distances = _rows_of_distances(self.config, self.max_len)
        rows = self.distances[_slice(of_distances, max(context.query_lens), self.config.num_distances)]
        if self.distance_norm is not None:
            rows = self.distance_norm(rows, context.ops)
        context = replace(context, distances=rows)
        embedded = None if self.neighbours is None else hidden.clone()
        for layer in self.layers:
            hidden, _ = layer(hidden, None, context)
            if self.neighbours is not None and embedded is not None:
                hidden, embedded = self.neighbours(embedded, hidden, context), None
        return hidden, None


def _attention(spec: LayerSpec) -> dict[str, nn.Module]:
    style = AttentionStyle(CausalScores(spec.config.family.attention_scale), qkv_bias=True, o_bias=True)
    return {"self_attn": DisentangledAttention(spec.config, style, spec.number, spec.group, spec.dtype)}


def deberta_style(config: ModelConfig) -> DecoderStyle:
    names = (
        *((rf"\.attention\.self\.{name}_proj\.", f".self_attn.{name[0]}_proj.") for name in ("query", "key", "value")),
        (r"\.attention\.self\.pos_", ".self_attn.pos_"),
        (r"^encoder\.rel_embeddings\.weight$", "model.distances"),
        (r"^encoder\.LayerNorm\.", "model.distance_norm."),
        (r"^encoder\.conv\.conv\.", "model.neighbours."),
        (r"^encoder\.conv\.LayerNorm\.", "model.neighbours.norm."),
    )
    rules = encoder_rules(config, *names, *BERT_NAMES)
    encoder = config.family.encoder_only
    if encoder is not None and not encoder.num_positions:
        rules = rules.plus(drops=(re.compile(r"^model\.embed_positions\."),))  # of its training
    return replace(bert_style(config), rules=rules, make_mixers=_attention, make_decoder=DebertaEncoder)
