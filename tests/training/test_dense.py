"""The dense network: the same numbers as transformers' Qwen3, with either attention."""

from __future__ import annotations

import pytest
import torch
from training.dense import DenseConfig, DenseQwen3, RMSNorm, fused_attention, plain_attention

TINY = DenseConfig(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
)


def _random_model(config: DenseConfig) -> DenseQwen3:
    generator = torch.Generator().manual_seed(1)
    model = DenseQwen3(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(1.0 if weight.ndim == 1 else 0.0, 0.2, generator=generator)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("length", [1, 40, 200])
def test_logits_agree_with_transformers(length: int) -> None:
    transformers = pytest.importorskip("transformers")
    fields = TINY.to_json()
    theta = fields.pop("rope_theta")
    config = transformers.Qwen3Config(
        **fields,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=True,
        attention_bias=False,
    )
    reference = transformers.Qwen3ForCausalLM(config).eval()
    model = _random_model(TINY)
    missing = reference.load_state_dict(model.state_dict(), strict=False)
    assert missing.missing_keys in ([], ["lm_head.weight"])
    assert missing.unexpected_keys == []
    reference.tie_weights()
    tokens = torch.randint(0, TINY.vocab_size, (2, length), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), reference(tokens).logits, atol=1e-4, rtol=1e-4)


def test_plain_and_fused_attention_agree() -> None:
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 6, 33, 16, generator=generator)
    k, v = torch.randn(2, 2, 2, 33, 16, generator=generator)
    torch.testing.assert_close(plain_attention(q, k, v), fused_attention(q, k, v), atol=1e-5, rtol=1e-5)


def test_norm_gradient_is_the_analytic_one() -> None:
    norm = RMSNorm(12, 1e-6)
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(4), requires_grad=True)
    weights = torch.linspace(0.5, 2.0, 60).view(5, 12)
    (norm(x) * weights).sum().backward()
    got, x.grad = x.grad, None
    (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weights).sum().backward()
    torch.testing.assert_close(got, x.grad, atol=1e-5, rtol=1e-5)


def test_a_token_never_looks_ahead() -> None:
    model = _random_model(TINY)
    tokens = torch.arange(20)[None] % TINY.vocab_size
    changed = tokens.clone()
    changed[0, 12:] = 5
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[:, :12], model(changed)[:, :12])


def test_config_survives_json() -> None:
    assert DenseConfig.from_json({**TINY.to_json(), "model_type": "qwen3"}) == TINY
    with pytest.raises(KeyError):
        DenseConfig.from_json({"vocab_size": 3})
