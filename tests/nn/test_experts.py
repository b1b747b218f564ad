"""The mixture of experts beside its definition, row by row, over every version of the ops; what it reads."""

from dataclasses import replace

import pytest
import torch
from kit.model.layers import filled

from lullm.config.layer.experts import ClampedGate, ExpertsConfig
from lullm.nn.experts import MixtureOfExperts
from lullm.nn.linear import Matrix
from lullm.ops.cpu.library import absence
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS

VERSIONS = [REFERENCE_OPS, TORCH_CPU_OPS, *([] if absence() else [NATIVE_CPU_OPS])]

HIDDEN = 16
CONFIG = ExpertsConfig(num_experts=6, num_used=2, intermediate_size=8, layers=(True,))
GROUPED = replace(CONFIG, scoring="sigmoid", num_groups=3, num_used_groups=2, has_correction=True, scale=1.5)
CONFIGS = {
    "softmax": CONFIG,
    "not normalized": replace(CONFIG, normalizes=False),
    "shared": replace(CONFIG, shared_intermediate_size=12),
    "shared behind a gate": replace(CONFIG, shared_intermediate_size=12, shared_is_gated=True),
    "groups": GROUPED,
    "clamped, biases": replace(CONFIG, has_biases=True, clamped_gate=ClampedGate(alpha=1.3, limit=0.7)),
}


def layer_of(config):
    return filled(MixtureOfExperts(config, HIDDEN, "silu", torch.float32))


def rows(count, seed=1):
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def defined(layer, config, row):
    """One token, in Python."""
    products = layer.gate.weight @ row + (layer.gate.bias if config.has_biases else 0)
    scores = products.softmax(0) if config.scoring == "softmax" else products.sigmoid()
    ranked = scores.clone()
    if config.has_correction:
        ranked += layer.gate.e_score_correction_bias
    size = config.num_experts // config.num_groups
    groups = [sorted(ranked.tolist()[first : first + size])[-2:] for first in range(0, config.num_experts, size)]
    best = sorted(range(config.num_groups), key=lambda group: -sum(groups[group]))[: config.num_used_groups]
    allowed = [expert for expert in range(config.num_experts) if expert // size in best]
    chosen = sorted(allowed, key=lambda expert: -ranked[expert])[: config.num_used]
    whole = sum(scores[expert] for expert in chosen) if config.normalizes else 1.0
    result = torch.zeros(HIDDEN)
    for expert in chosen:
        result += mlp(layer.experts[expert], row, config.clamped_gate) * scores[expert] / whole * config.scale
    if config.shared_intermediate_size:
        share = torch.sigmoid(layer.shared_expert_gate.weight[0] @ row) if config.shared_is_gated else 1.0
        result += mlp(layer.shared_expert, row) * share
    return result


def mlp(expert, row, clamp=None):
    if clamp is None:
        gate, up = (expert.gate_up_proj.weight @ row).chunk(2)
        return expert.down_proj.weight @ (torch.nn.functional.silu(gate) * up)
    gate, up = (expert.gate_up_proj.weight @ row + expert.gate_up_proj.bias).chunk(2)
    assert gate.max() > clamp.limit and up.abs().max() > clamp.limit, "otherwise the clamp would do nothing"
    gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
    return expert.down_proj.weight @ ((up + 1) * gate / (1 + torch.exp(-clamp.alpha * gate))) + expert.down_proj.bias


def pack(layer, ops):
    for module in layer.modules():
        if isinstance(module, Matrix):
            ops.pack_weight_(module.weight)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("ops", VERSIONS, ids=lambda ops: ops.name)
@torch.inference_mode()
def test_definition(config, ops):
    layer, x = layer_of(config), rows(9)
    expected = torch.stack([defined(layer, config, row) for row in x])
    pack(layer, ops)
    torch.testing.assert_close(layer(x, ops), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("ops", VERSIONS, ids=lambda ops: ops.name)
@torch.inference_mode()
def test_only_chosen_experts_are_read(ops):
    layer, x = layer_of(CONFIG), rows(1)
    pack(layer, ops)
    expected = layer(x, ops)
    chosen = set(layer.gate.choose(x, ops).experts.flatten().tolist())
    assert len(chosen) == CONFIG.num_used
    for number, expert in enumerate(layer.experts):
        if number not in chosen:
            for parameter in expert.parameters():
                parameter.fill_(torch.nan)
    assert torch.equal(layer(x, ops), expected)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("ops", [REFERENCE_OPS, *VERSIONS[2:]], ids=lambda ops: ops.name)
@torch.inference_mode()
def test_a_row_does_not_depend_on_its_batch(config, ops):
    """To the last bit. Of the reference, products with more than one row are left out."""
    layer, x = layer_of(config), rows(12)
    pack(layer, ops)
    if ops is REFERENCE_OPS:
        by_row = {
            "linear": lambda x, weight, bias: torch.stack([REFERENCE_OPS.linear(r[None], weight, bias)[0] for r in x]),
            "gated_linear": lambda x, weight, bias, activation: torch.cat(
                [REFERENCE_OPS.gated_linear(r[None], weight, bias, activation) for r in x]
            ),
        }
        ops = replace(ops, **by_row)
    together = layer(x, ops)
    for number in range(12):
        assert torch.equal(layer(x[number : number + 1], ops)[0], together[number])
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer(x[order], ops), together[order])
