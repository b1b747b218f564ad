"""Quantized checkpoints beside the formats' own arithmetic: numbers, integers for the native formats, refusals."""

import pytest
import torch
from kit.folder import quantized
from kit.folder.quantized import FORMATS, NATIVE, compressed

from lullm.config.encoding import scheme
from lullm.config.encoding.table import read_encoding
from lullm.errors import ModelLoadError
from lullm.ops.quantized.grid import GridLayout
from lullm.ops.quantized.integer_rows import rows_of_storage, store_rows_
from lullm.ops.quantized.narrow import NarrowLayout
from lullm.ops.quantized.weight import QuantizedLayout, dequantize
from lullm.weights.encoding.checkpoint import with_encoding
from lullm.weights.encoding.joining import Joining
from lullm.weights.quantization import whole_blocks
from lullm.weights.rule import WeightRules


def decoded(config, parts, module="model.layers.0.mlp.up_proj"):
    """The encoded tensor that the parts of a module are."""
    rules = with_encoding(WeightRules(), read_encoding(config, frozenset()))
    names = {f"{module}.{part}": tensor for part, tensor in parts.items() if part != "input_scale"}
    joining = Joining(rules.joins, names)
    *_, found = (joining.add(name, tensor) for name, tensor in names.items())
    return found


def weight(seed=0, shape=(64, 96)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * torch.logspace(-1, 1, shape[0])[:, None]


@pytest.mark.parametrize("name", FORMATS)
def test_numbers(name):
    """As the format's own arithmetic: in pieces, too."""
    config, encode = FORMATS[name]()
    parts, expected = encode(weight(shape=(64, 192)))
    whole, found = decoded(config, parts)
    assert whole == "model.layers.0.mlp.up_proj.weight" and found.shape == expected.shape
    assert (expected - weight(shape=(64, 192))).abs().max() < 9, "a check of the test's own arithmetic"
    torch.testing.assert_close(found.decode(), expected, rtol=2e-6, atol=0)
    pieces = found.split(13)
    assert [len(piece) for piece in pieces] == [13, 13, 13, 13, 12]
    torch.testing.assert_close(torch.cat([piece.decode() for piece in pieces]), found.decode(), rtol=0, atol=0)


@pytest.mark.parametrize("name", FORMATS)
def test_integers(name):
    """A native format holds just what the checkpoint holds, or is none of those that are named."""
    config, encode = FORMATS[name]()
    parts, expected = encode(weight())
    _, found = decoded(config, parts)
    native = NATIVE.get(name, ())
    assert getattr(found, "native_formats", ()) == native
    assert all(found.rows(number) is None for number in {4, 8, 16, 17, 22} - set(native))
    for number in native:
        layout = whole_blocks(number, 96, 96)
        storage = torch.zeros(layout.shape, dtype=torch.uint8)
        first = 5
        for piece in found.split(40):
            rows = piece.rows(number)
            if isinstance(layout, GridLayout | NarrowLayout):
                layout.store_(storage, first, rows)
            else:
                store_rows_(storage, layout, first, rows)
            first += len(rows)
        torch.testing.assert_close(dequantize(storage, layout, 5, 69), expected, rtol=2e-6, atol=2e-6)
        assert not dequantize(storage, layout, 0, 5).any() and not dequantize(storage, layout, 69, 96).any()


def test_scales_that_are_no_float16():
    """They have no place in a grid: the matrix is decoded."""
    config, encode = FORMATS["w4a16"]()
    parts, _ = encode(weight())
    parts["weight_scale"] *= 1 + 2**-15
    assert decoded(config, parts)[1].native_formats == ()
    parts["weight_scale"] = torch.full_like(parts["weight_scale"], 2.0**-30)
    assert decoded(config, parts)[1].native_formats == ()


def test_a_zero_point_of_zero():
    """Version 1 stores zero points less one: zero borrows from its neighbour, as GPTQModel writes it."""
    values = weight().abs()
    config, encode = quantized.gptq()
    parts, expected = encode(values)
    torch.testing.assert_close(decoded(config, parts)[1].decode(), expected, rtol=2e-6, atol=0)
    assert (decoded(config, parts)[1].zeros == 0).all()


def test_symmetric_by_the_config_and_not_in_the_file():
    config, encode = quantized.gptq(size=-1)
    parts, expected = encode(weight())
    _, found = decoded(config | {"sym": True}, parts)
    assert found.native_formats == (22,) and found.rows(4) is None
    torch.testing.assert_close(found.decode(), expected, rtol=2e-6, atol=0)


def test_the_smallest_byte():
    """-128 is in int8's range, and beyond that of lullm's own quantizing."""
    config, encode = compressed({"num_bits": 8, "strategy": "channel"}, "int-quantized")
    parts, _ = encode(weight())
    parts["weight"][:, ::2] = -128
    rows = decoded(config, parts)[1].rows(8)
    layout = QuantizedLayout(8, 64, 96)
    storage = torch.zeros(layout.shape, dtype=torch.uint8)
    store_rows_(storage, layout, 0, rows)
    assert (rows_of_storage(storage, layout).integers[:, ::2] == -128).all()


def test_modules_by_name_expression_and_class():
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}}
    few = {"targets": ["re:.*down_proj", "model.layers.1.mlp.up_proj"],
           "weights": {"num_bits": 4, "strategy": "group", "group_size": 32}, "format": "pack-quantized"}  # fmt: skip
    config = {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head", "re:.*q_proj"],
              "config_groups": {"a": group, "b": few}}  # fmt: skip
    encoding = read_encoding(config, frozenset())
    bits = {name: scheme and scheme.bits for name in (
        "lm_head", "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj",
        "model.layers.9.mlp.down_proj", "model.embed_tokens",
    ) for scheme in [encoding.scheme_of(name)]}  # fmt: skip
    assert list(bits.values()) == [None, None, 8, 4, 4, None]
    awq, _ = quantized.awq(modules_to_not_convert=["visual", "mlp.gate"])
    encoding = read_encoding(awq, frozenset())
    assert read_encoding({key: awq[key] for key in awq if key != "version"}, frozenset()) == encoding, "gemm is default"
    assert encoding.scheme_of("model.layers.0.mlp.gate") is None and encoding.scheme_of("visual.a.b") is None
    assert encoding.scheme_of("model.layers.0.mlp.gate_proj") is not None


def test_modules_of_auto_round_and_of_modelopt():
    """By name, by expression, and with wildcards."""
    extra = {"lm_head": {"bits": 16}, "model.layers.0.a": {"bits": 8}, r".*layers\.1\..*": {"group_size": 64}}
    encoding = read_encoding(quantized.auto_round(extra_config=extra)[0], frozenset())
    found = {name: encoding.scheme_of(name) for name in ("lm_head", "model.layers.0.a", "layers.1.b", "layers.10.b")}
    stated = {name: each and (each.bits, each.group_size) for name, each in found.items()}
    assert stated == {"lm_head": None, "model.layers.0.a": (8, 32), "layers.1.b": (4, 64), "layers.10.b": (4, 32)}
    encoding = read_encoding(quantized.modelopt(ignore=["lm_head", "model.layers.0*", "*.gate"])[0], frozenset())
    left = ("lm_head", "model.layers.0.self_attn.q_proj", "model.layers.3.mlp.gate")
    assert [encoding.scheme_of(name) for name in left] == [None] * 3
    assert encoding.scheme_of("model.layers.3.mlp.gate_proj") is not None


def test_runs_that_end_within_a_row():
    config, encode = quantized.bitsandbytes()
    parts, expected = encode(weight(shape=(7, 90)))
    torch.testing.assert_close(decoded(config, parts)[1].decode(), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"quant_method": "quanto"}, "'quanto' is not supported.*original in bfloat"),
        ({"quant_method": "eetq"}, "eetq.*take the original"),
        ({"quant_method": "hqq"}, "quant_config must be an object"),
        (quantized.mlx(7)[0], "bits is 7"),
        (quantized.mlx(size=48)[0], "group_size is 48"),
        (quantized.mlx(mode="mxfp6")[0], "mode is 'mxfp6'"),
        (quantized.mlx(mode="mxfp4", size=64)[0], "group_size is 64"),
        (quantized.mlx(**{"model.layers.0.mlp.up_proj": 4})[0], "up_proj must be an object, true or false, not 4"),
        (quantized.hqq(quant_config={"weight_quant_params": {"nbits": 3}})[0], "nbits is 3"),
        (quantized.hqq(quant_config={"weight_quant_params": {"nbits": 4, "axis": 0}})[0], "axis is 0"),
        (quantized.hqq(quant_config={"q_proj": {"nbits": 4}})[0], "weight_quant_params must be an object"),
        (quantized.hqq(quant_config={"weight_quant_params": {"nbits": 4}, "zero_quant_params": {"nbits": 8}})[0],
         "zero_quant_params .*not implemented"),
        (quantized.torchao("Int4WeightOnlyConfig", 64)[0], "_type is 'int4weightonlyconfig'"),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "one config, 'default'"),
        (quantized.torchao("IntxWeightOnlyConfig", intx_packing_format={"_data": "OPAQUE_ATEN_KLEIDIAI"})[0],
         "must be UNPACKED_TO_INT8"),
        (quantized.torchao("Float8WeightOnlyConfig", weight_dtype={"_data": "float8_e5m2"})[0], "only float8_e4m3fn"),
        (quantized.quark("fp6_e2m3")[0], "dtype is 'fp6_e2m3'"),
        (quantized.quark("fp4", group_size=16)[0], "group_size is 16"),
        (quantized.quark("int4", symmetric=False)[0], "int4 with symmetric False"),
        (quantized.quark()[0] | {"layer_type_quant_config": {"a": {}}}, "layer_type_quant_config .*not implemented"),
        (quantized.quark()[0] | {"layer_quant_config": {"*.q_proj": {}}}, "has no weight; name it in exclude"),
        (quantized.quark()[0] | {"export": {"pack_method": "order"}}, "pack_method is 'order'"),
        (quantized.auto_round("auto_round:llm_compressor")[0], "packing_format is 'auto_round:llm_compressor'"),
        (quantized.auto_round(bits=3)[0], "bits is 3"),
        (quantized.auto_round(act_bits=8)[0], "act_bits is 8"),
        (quantized.auto_round(extra_config={"model.layers.0": 3})[0], "extra_config must map"),
        (quantized.modelopt(quant_algo="W4A8_AWQ")[0], "quant_algo is 'w4a8_awq'"),
        (quantized.modelopt(group_size=32)[0], "group_size is 32"),
        (quantized.modelopt(pre_quant_scale=True)[0], "pre_quant_scale True: not implemented"),
        (quantized.narrow("nvfp4-pack-quantized", 16)[0] | {"format": "mxfp4-pack-quantized"}, "groups of 32 only"),
        ({"quant_method": "x" * 10_000}, "is not supported"),
        ({"quant_method": 3}, "quant_method must name"),
        ([1], "quant_method must name"),
        (quantized.awq(version="gemv")[0], "version is 'gemv'; supported: 'gemm'"),
        (quantized.awq(bits=3)[0], "bits is 3; supported: 4"),
        (quantized.awq(group_size=0)[0], "group_size"),
        (quantized.awq(modules_to_not_convert="lm_head")[0], "list of names"),
        (quantized.gptq(bits=3, checkpoint_format="gptq")[0], "bits is 3"),
        (quantized.gptq(checkpoint_format="marlin")[0], "checkpoint_format is 'marlin'"),
        (quantized.gptq(is_marlin_format=True)[0], "is_marlin_format True: not implemented"),
        (quantized.gptq(dynamic={"-:.*": {}})[0], "dynamic .*not implemented"),
        (quantized.float8(fmt="e5m2")[0], "fmt is 'e5m2'"),
        (quantized.float8(weight_block_size=[128])[0], "weight_block_size must be two"),
        (quantized.float8(expert_dtype="fp4")[0], "expert_dtype"),
        (compressed({"num_bits": 8}, "int-quantized", transform_config={"a": 1})[0], "transform_config"),
        (compressed({"num_bits": 8}, "int-quantized", sparsity_config={"format": "sparse-24-bitmask"})[0], "sparse"),
        (compressed({"num_bits": 8}, "int-quantized", format="marlin-24")[0], "format is 'marlin-24'"),
        (compressed({"num_bits": 8}, "int-quantized", config_groups={})[0], "config_groups is empty"),
        (compressed({"num_bits": 8}, "int-quantized", config_groups={"a": 1})[0], "config_groups must map"),
        (compressed({"num_bits": 8}, "int-quantized", ignore=["re:("])[0], "no regular expression"),
        (compressed({"num_bits": 8}, "int-quantized", ignore=["re:(a+)+b"])[0], "repeats a group"),
        (compressed({"num_bits": 8}, "int-quantized", ignore=["re:" + ".*a" * 9])[0], "too long"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(config, match):
    with pytest.raises(ModelLoadError, match=match):
        read_encoding(config, frozenset())


def test_expressions_take_bounded_time(monkeypatch):
    """Three repeats in a name of 1,000 characters would take a minute, and 40,000 names of 120 twenty."""
    config, _ = compressed({"num_bits": 8}, "int-quantized", ignore=["re:" + ".*a" * 3 + "b"])
    encoding = read_encoding(config, frozenset())
    assert encoding.scheme_of("model.layers.0.mlp.down_proj") is not None
    with pytest.raises(ModelLoadError, match="too long to find in a{80}..., of 1000 characters"):
        encoding.scheme_of("a" * 1000)
    monkeypatch.setattr(scheme, "_MOST_SEARCH_S", 0.0)
    with pytest.raises(ModelLoadError, match="too long to find in model.layers.1.mlp.down_proj, of"):
        encoding.scheme_of("model.layers.1.mlp.down_proj")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_bits": 3}, "num_bits is 3"),
        ({"dynamic": True}, "dynamic is True"),
        ({"type": "float"}, "floating point weights in the format"),
        ({"strategy": "group", "group_size": None}, "contradict"),
        ({"strategy": "tensor_group"}, "strategy 'tensor_group'"),
        ({"strategy": "block"}, "strategy 'block'"),
        ({"symmetric": "no"}, "symmetric is 'no'"),
    ],
)
def test_weights_of_a_group_that_are_not_supported(change, match):
    config, _ = compressed({"num_bits": 8, "strategy": "channel"}, "int-quantized")
    config["config_groups"]["group_0"]["weights"] |= change
    with pytest.raises(ModelLoadError, match=match):
        read_encoding(config, frozenset())
    config["config_groups"]["group_0"] = {"targets": ["LlamaAttention"], "weights": {}}
    with pytest.raises(ModelLoadError, match="class 'LlamaAttention'"):
        read_encoding(config, frozenset())


def test_what_nothing_is_known_about_is_named_in_a_warning(caplog):
    with caplog.at_level("WARNING", logger="lullm"):
        read_encoding(quantized.awq(a_note=3)[0], frozenset())
    assert "a_note" in caplog.text


def cut(part, dim=0):
    return lambda parts: parts.__setitem__(part, parts[part].narrow(dim, 0, parts[part].shape[dim] - 1))


LONG = b'{"shape": [64, 96], "blocksize": 1099511627776}'


def put(part, value):
    return lambda parts: parts.__setitem__(part, value)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("awq", lambda parts: parts.pop("qzeros"), "missing tensor model.layers.0.mlp.up_proj.qzeros"),
        ("awq", cut("qzeros"), "zero points .* do not fit"),
        ("awq", cut("scales", 1), "scales .* do not fit"),
        ("awq", cut("qweight", 1), "scales .* do not fit"),
        ("awq", put("qweight", torch.zeros(4, 4)), "not a matrix of torch.int32"),
        ("gptq act-order", lambda parts: parts.pop("g_idx"), "g_idx is missing"),
        ("awq", lambda parts: parts.update(scales=parts["scales"][None]), "scales .* are no matrix"),
        ("gptq act-order", cut("g_idx"), "g_idx .* does not say"),
        ("gptq act-order", lambda parts: parts["g_idx"].fill_(99), "without scales"),
        ("gptq v1", lambda parts: parts["scales"].fill_(float("nan")), "infinite or NaN"),
        ("w4a16", put("weight_shape", torch.tensor([64])), "weight_shape"),
        ("w4a16", put("weight_shape", torch.tensor([64, 1 << 40])), "do not hold a matrix"),
        ("w4a16", put("weight_shape", torch.tensor([-64, 96])), "weight_shape"),
        ("w4a16", put("weight_shape", torch.tensor([[64, 96]])), "weight_shape"),
        ("w4a16 asymmetric", lambda parts: parts.pop("weight_zero_point"), "zero points are missing"),
        ("w4a16 asymmetric", cut("weight_zero_point"), "zero points .* do not fit"),
        ("w8a8", lambda parts: parts.pop("weight"), "missing tensor"),
        ("w8a8", put("weight", torch.zeros(64, 96, dtype=torch.uint8)), "not a matrix of torch.int8"),
        ("w8a8", put("weight_scale", torch.ones(63, 1)), "scales"),
        ("nvfp4", cut("weight_scale"), "scales .* do not fit"),
        ("nvfp4", lambda parts: parts.pop("weight_global_scale"), "none or several scales of the whole"),
        ("nvfp4", put("weight_global_scale", torch.zeros(1)), "no positive number"),
        ("nvfp4", put("weight_packed", torch.zeros(64, 48)), "not a matrix of bytes"),
        ("nvfp4 of ModelOpt", lambda parts: parts.pop("weight_scale"), "weight_scale are needed"),
        ("mxfp4", lambda parts: parts["weight_scale"].fill_(255), "a scale is NaN"),
        ("nf4", cut("weight"), "bytes do not hold a matrix"),
        ("nf4", cut("weight.absmax"), "table .* and scales .* do not fit"),
        ("nf4", lambda parts: parts.pop("weight.quant_map"), "missing tensor .*quant_map"),
        ("nf4", put("weight.quant_state.bitsandbytes__nf4", torch.tensor([123], dtype=torch.uint8)), "no JSON"),
        ("nf4", put("weight.quant_state.bitsandbytes__nf4", torch.tensor([123, 125], dtype=torch.uint8)), "no shape"),
        ("nf4", put("weight.quant_state.bitsandbytes__nf4", torch.tensor(list(LONG), dtype=torch.uint8)), "blocksize"),
        ("nf4 nested", lambda parts: parts.pop("weight.nested_absmax"), "missing tensor .*nested_absmax"),
        ("nf4 nested", cut("weight.nested_quant_map"), "scales of scales"),
        ("HQQ", cut("W_q"), "bytes do not hold a matrix"),
        ("HQQ", cut("zero"), "zero points .* do not fit"),
        ("HQQ", put("axis", torch.tensor(0)), "axis is not 1"),
        ("HQQ", put("shape", torch.tensor([64, 1 << 40])), "do not hold a matrix"),
        ("torchao, int8", lambda parts: parts.pop("_weight_qdata"), "missing tensor"),
        ("torchao, groups", cut("_weight_scale", 1), "scales .* do not fit"),
        ("Quark, uint4", lambda parts: parts.pop("weight_zero_point"), "missing tensor .*qzeros"),
        ("int8 of bitsandbytes", put("weight_format", torch.tensor(1)), "order of rows"),
        ("fp8 of Qwen", cut("weight_scale_inv"), "scales .* do not fit"),
        ("fp8 of Qwen", lambda parts: parts.pop("weight"), "needed"),
        ("fp8 of Mistral", put("weight_scale_inv", torch.tensor(float("inf"))), "infinite"),
        ("fp8 of Mistral", put("weight", torch.zeros(64, 96).to(torch.float8_e5m2)), "not a matrix of float8_e4m3fn"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(name, change, match):
    config, encode = FORMATS[name]()
    parts, _ = encode(weight())
    change(parts)
    with pytest.raises(ModelLoadError, match=f"mlp.up_proj.*({match})"):
        decoded(config, parts)


def test_a_module_that_should_not_be_quantized():
    config, encode = FORMATS["w8a8"]()
    parts, _ = encode(weight())
    with pytest.raises(ModelLoadError, match="lm_head.weight is stored quantized"):
        decoded(config, parts, "lm_head")


def test_architectures_that_hold_matrices_otherwise():
    import re

    rules = WeightRules(transposes=(re.compile("x"),))
    with pytest.raises(ModelLoadError, match="awq is not supported for this architecture"):
        with_encoding(rules, read_encoding(quantized.awq()[0], frozenset()))
