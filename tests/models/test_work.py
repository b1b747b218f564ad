"""What a step cannot do without, counted by hand."""

import pytest
import torch

from lullm.config.model import ModelConfig
from lullm.models.registry import build_model
from lullm.models.work import bytes_read, operations, parts

H, D, V, W, E, K = 32, 8, 100, 24, 8, 2  # hidden, head, vocabulary, experts' width, experts, experts used
DENSE = {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": V, "hidden_size": H, "intermediate_size": W, "head_dim": D,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTURE = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"], "num_experts": E, "num_experts_per_tok": K, "moe_intermediate_size": W,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
ATTENTION = H * (4 + 2 + 2) * D + 4 * D * H
NORMS = 3 * H + 2 * D


def built(data):
    config = ModelConfig.from_dict(data)
    return build_model(config, torch.float32, 64), config


def test_dense():
    model, config = built(DENSE)
    layer = ATTENTION + 3 * H * W
    assert bytes_read(model, config) == 4 * (layer + NORMS + V * H), "the table of embeddings is not read"
    assert operations(model, config, 10) == 2 * (10 * layer + V * H)
    assert operations(model, config, 10, num_logits=10) == 2 * 10 * (layer + V * H)
    tied, config = built(DENSE | {"tie_word_embeddings": True})
    assert bytes_read(tied, config) == 4 * (layer + NORMS + V * H), "as the head it is"


def test_mixture():
    model, config = built(MIXTURE)
    experts, rest = E * 3 * H * W, ATTENTION + NORMS + E * H + V * H
    for num_rows, share in ((1, K / E), (2, 1 - (1 - K / E) ** 2), (1000, 1.0)):
        assert bytes_read(model, config, num_rows) == pytest.approx(4 * (rest + share * experts))
    assert operations(model, config, 10) == pytest.approx(2 * (10 * (ATTENTION + E * H + experts * K / E) + V * H))


def test_the_experts_of_a_layer_are_one_part_for_each_of_their_matrices():
    model, config = built(MIXTURE)
    found = [part for part in parts(model, config, 10) if part.num_bytes == pytest.approx(4 * E * 2 * H * W, rel=0.1)]
    assert [part.num_operations for part in found] == [pytest.approx(2 * 10 * K * 2 * H * W)], "gates and ups"
    assert sum(part.num_bytes for part in parts(model, config, 10)) == bytes_read(model, config, 10)


def test_tables_of_embeddings_for_the_layers_are_not_read():
    """Gemma 4's is the larger half of its small models."""
    sizes = {"hidden_size_per_layer_input": 4, "layer_types": ["full_attention"], "global_head_dim": D}
    sizes |= {"architectures": ["Gemma4ForCausalLM"], "tie_word_embeddings": True}
    few, many = (built(DENSE | sizes | {"vocab_size_per_layer_input": rows}) for rows in (10, 10_000))
    assert bytes_read(*few) == bytes_read(*many)
    assert operations(*few, 10) == operations(*many, 10)
