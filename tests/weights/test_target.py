"""Single tensors by the checkpoint's own names: the right slice, and nothing beside it."""

import pytest
import torch

from lullm.errors import ModelLoadError
from lullm.nn.attention import add_kv_scales
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.target import WeightTargets


def write(targets, name, tensor):
    """As a loader does: find the rows, write them. The canonical name; None if the rules drop the tensor."""
    target = targets.find(name, tensor)
    if target is None:
        return None
    target.rows.write(tensor)
    return target.name


def test_the_names_are_the_checkpoints(make_model, checkpoint):
    assert WeightTargets(make_model(), TORCH_CPU_OPS).names == set(checkpoint)
    tied = WeightTargets(make_model(tie_word_embeddings=True), TORCH_CPU_OPS).names
    assert tied == set(checkpoint) - {"lm_head.weight"}


def test_biases_are_fused_like_weights(make_model):
    model = make_model(attention_bias=True)
    targets = WeightTargets(model, TORCH_CPU_OPS)
    write(targets, "model.layers.0.self_attn.v_proj.bias", torch.full((16,), 2.0))
    bias = model.model.layers[0].self_attn.qkv_proj.bias
    assert bias.tolist() == [0.0] * 48 + [2.0] * 16


@pytest.mark.parametrize(
    ("name", "fused", "rows"),
    [
        ("self_attn.q_proj", "self_attn.qkv_proj", slice(0, 32)),
        ("self_attn.k_proj", "self_attn.qkv_proj", slice(32, 48)),
        ("self_attn.v_proj", "self_attn.qkv_proj", slice(48, 64)),
        ("mlp.gate_proj", "mlp.gate_up_proj", slice(0, 24)),
        ("mlp.up_proj", "mlp.gate_up_proj", slice(24, 48)),
        ("mlp.down_proj", "mlp.down_proj", slice(0, 16)),
    ],
)
def test_one_tensor_changes_its_slice_only(make_model, checkpoint, name, fused, rows):
    model = make_model()
    before = {key: parameter.clone() for key, parameter in model.named_parameters()}
    tensor = checkpoint[f"model.layers.1.{name}.weight"]
    full_name = f"model.layers.1.{name}.weight"
    assert write(WeightTargets(model, TORCH_CPU_OPS), full_name, tensor) == full_name
    before[f"model.layers.1.{fused}.weight"][rows] = tensor
    for key, parameter in model.named_parameters():
        assert torch.equal(parameter, before[key]), key


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        *(("k_scale", [0]), ("v_scale", [1]), ("kv_scale", [0, 1]), ("attn.k_scale", [0]), ("k_proj.k_scale", [0])),
        *(("v_proj.v_scale", [1]), ("v_proj.output_scale", [1]), ("qkv_proj.v_scale", [1]), ("q_scale", [])),
        *(("prob_scale", []), ("q_proj.output_scale", []), ("attn.q_scale", [])),
    ],
)
def test_scales_of_an_fp8_cache(make_model, checkpoint, name, sides):
    model = make_model()
    name = f"layers.1.self_attn.{name}"
    assert write(WeightTargets(model, TORCH_CPU_OPS), name, torch.tensor(0.5)) is None, "the cache is no fp8"
    add_kv_scales(model)
    targets = WeightTargets(model, TORCH_CPU_OPS)
    assert targets.names == set(checkpoint), "a checkpoint may lack them"
    for value in (torch.tensor(0.5), torch.tensor([2.0, 4.0], dtype=torch.bfloat16), torch.tensor([[[3.0]], [[5.0]]])):
        applied = write(targets, name, value)
        assert (applied is not None) == bool(sides)
        given = model.model.layers[1].self_attn.kv_scales.given
        for side in range(2):
            wanted = value.flatten().expand(2).float() if side in sides else torch.full((2,), torch.nan)
            assert torch.equal(given[side].nan_to_num(), wanted.nan_to_num())
    assert model.model.layers[0].self_attn.kv_scales.given.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gemmas_norms_hold_one_more_than_the_checkpoint(make_model, dtype):
    """All of them, and nothing else; in bfloat16 the sum is rounded once, not its parts."""
    model = make_model(dtype, architectures=["Gemma3ForCausalLM"])
    targets = WeightTargets(model, TORCH_CPU_OPS)
    value = torch.tensor(2.0**-7 + 2.0**-9)
    for name, parameter in model.named_parameters():
        if name in targets.names:  # not a fused one
            write(targets, name, value.expand(parameter.shape))
            expected = 1 + value if "norm" in name else value
            assert torch.equal(parameter, expected.to(dtype).expand_as(parameter)), name
    assert sum("norm" in name for name in targets.names) == 13


def test_refusals(make_model):
    model = make_model(tie_word_embeddings=True)
    targets = WeightTargets(model, TORCH_CPU_OPS)
    assert write(targets, "lm_head.weight", torch.ones(1)) is None
    assert write(targets, "norm.weight", torch.ones(16)) == "model.norm.weight"
    for name, tensor, words in [
        ("model.layers.0.self_attn.qkv_proj.weight", torch.ones(64, 16), "unexpected tensor"),  # our name, not theirs
        ("model.layers.2.mlp.up_proj.weight", torch.ones(24, 16), "unexpected tensor"),
        ("model.norm.weight", torch.ones(17), "has shape"),
        ("model.norm.weight", torch.ones(16).to(torch.float8_e4m3fn), "quantization_config"),
    ]:
        with pytest.raises(ModelLoadError, match=words) as caught:
            write(targets, name, tensor)
        assert name in str(caught.value)
