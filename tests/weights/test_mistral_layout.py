"""Folders in Mistral's own layout, beside the same models in transformers' layout."""

import contextlib
import copy
import json
import random
import re

import pytest
import torch
from kit.folder.mistral_layout import write_own_layout
from kit.model import golden
from kit.model.families import GROUPS, LATENT, MISTRAL4_ROPE, STRETCHED, TIED
from kit.model.golden import load_model, save_model
from kit.vision.checkpoint import write_pixtral
from safetensors.torch import load_file, save_file

from lullm import LLM, SamplingParams
from lullm.cli.main import main
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.models.registry import build_model
from lullm.weights.reading.files import missing_files
from lullm.weights.storage import choose_storage

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
PLAIN = ("Mistral", {"sliding_window": None})
MODELS = {
    "plain": PLAIN,
    "window, tied": ("Mistral", {"sliding_window": 7, **TIED}),
    "yarn": ("Mistral", {"sliding_window": None, "rope_parameters": YARN}),
    "stretched": ("Ministral3", STRETCHED),
    "windows in some layers": (
        "Ministral", {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
    ),
    "experts": ("Mixtral", {"num_local_experts": 4}),
    "latent vectors": ("Mistral4", LATENT | {"rope_parameters": MISTRAL4_ROPE, "n_group": 1, "topk_group": 1}),
    "groups": (
        "Mistral4",
        LATENT | GROUPS | {"rope_parameters": MISTRAL4_ROPE, "first_k_dense_replace": 1, "norm_topk_prob": True},
    ),
}  # fmt: skip


def same_parameters(one, other):
    ones, others = dict(one.named_parameters()), dict(other.named_parameters())
    return ones.keys() == others.keys() and all(torch.equal(ones[name], others[name]) for name in ones)


@pytest.mark.parametrize("name", MODELS)
def test_the_config_and_the_weights_are_those_of_transformers_layout(tmp_path, name):
    family, options = MODELS[name]
    source, own = tmp_path / "source", tmp_path / "own"
    source.mkdir()
    save_model(source, family, options)
    write_own_layout(source, own)
    assert ModelConfig.from_folder(own) == ModelConfig.from_folder(source)
    assert same_parameters(load_model(own), load_model(source))


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (0, {"head_dim": 16, "sliding_window": None}),
        (2, {"head_dim": 16, "sliding_window": None}),
        (2, {"model_type": "ministral3", "head_dim": 16, **STRETCHED}),
    ],
)
def test_pictures(tmp_path, factor, text):
    """Without a file of an image processor, as Mistral releases them."""
    source, own = tmp_path / "source", tmp_path / "own"
    write_pixtral(
        source, factor, text | {"bos_token_id": 1, "eos_token_id": 2}, tower={"image_size": 40, "hidden_act": "silu"}
    )
    write_own_layout(source, own)
    stated = json.loads((source / "preprocessor_config.json").read_text())
    assert ModelConfig.from_folder(own) == ModelConfig.from_folder(source)
    (own / "preprocessor_config.json").unlink()
    config = ModelConfig.from_folder(own)
    assert config.vision is not None, config.no_vision
    assert config.vision.picture.resize_edge == stated["size"]["longest_edge"]
    assert config == ModelConfig.from_folder(source)
    assert same_parameters(load_model(own), load_model(source))


@pytest.fixture
def plain(tmp_path):
    """The folders in both layouts."""
    source = tmp_path / "source"
    source.mkdir()
    save_model(source, PLAIN[0], PLAIN[1] | {"vocab_size": 301})
    return source, write_own_layout(source, tmp_path / "own")


def test_an_engine_speaks_with_it(plain):
    source, own = plain
    options = {"dtype": "float32", "max_model_len": 96, "max_num_seqs": 2, "enable_sleep_mode": True}
    words = [{"role": "user", "content": "a b"}]
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    tokens = []
    for folder in (own, source):
        llm = LLM(str(folder), tokenizer=str(own), **options)
        [output] = llm.chat(words, greedy, use_tqdm=False)
        tokens.append((output.prompt_token_ids, output.outputs[0].token_ids))
        if folder is own:
            llm.sleep(level=2)
            llm.wake_up()
            [again] = llm.chat(words, greedy, use_tqdm=False)
            assert again.outputs[0].token_ids == tokens[0][1]
        llm.shutdown()
    assert tokens[0] == tokens[1]
    assert tokens[0][0][:2] == [1, 3], "<s>[INST]"


def test_shards_and_their_index(plain):
    source, own = plain
    tensors = load_file(own / "consolidated.safetensors")
    (own / "consolidated.safetensors").unlink()
    names = sorted(tensors)
    files = [f"consolidated-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, part in zip(files, (names[::2], names[1::2]), strict=True):
        save_file({name: tensors[name] for name in part}, own / file)
    assert same_parameters(load_model(own), load_model(source))
    index = dict.fromkeys(names[::2], files[0]) | dict.fromkeys(names[1::2], files[1])
    (own / "consolidated.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert same_parameters(load_model(own), load_model(source))
    (own / files[1]).unlink()
    assert missing_files(own) == [files[1]]
    with pytest.raises(ModelLoadError, match=f"lacks the weight files {files[1]}"):
        load_model(own)


def test_a_config_json_goes_first(plain):
    source, own = plain
    (source / "params.json").write_text("{}")
    save_file({}, source / "consolidated.safetensors")
    assert same_parameters(load_model(source), load_model(own))


def test_numbers_of_8_bits(plain, monkeypatch):
    """Scales of matrices are read, those of activations are passed over."""
    _, own = plain
    tensors = load_file(own / "consolidated.safetensors")
    expected, stored = {}, {}
    for name, tensor in tensors.items():
        if not re.search(r"\.w[1-3qkvo]\.", name):
            expected[name] = stored[name] = tensor
            continue
        scale = tensor.abs().max() / 448
        stored[name] = (tensor / scale).to(torch.float8_e4m3fn)
        stored[name.replace(".weight", ".qscale_weight")] = scale
        stored[name.replace(".weight", ".qscale_act")] = torch.tensor(0.5)
        expected[name] = stored[name].float() * scale
    save_file(expected, own / "consolidated.safetensors")
    plain_model = load_model(own)

    def quantized_model(config, dtype, max_model_len):
        model = build_model(config, dtype, max_model_len)
        choose_storage(model, config.encoding, None, own)
        return model

    save_file(stored, own / "consolidated.safetensors")
    params = json.loads((own / "params.json").read_text())
    params["quantization"] = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    (own / "params.json").write_text(json.dumps(params))
    monkeypatch.setattr(golden, "build_model", quantized_model)
    assert same_parameters(load_model(own), plain_model)


def test_a_quantized_copy_has_transformers_layout(plain, tmp_path):
    source, own = plain
    for folder, out in ((own, tmp_path / "a"), (source, tmp_path / "b")):
        assert main(["quantize", str(folder), str(out), "--quantization", "int8"]) == 0
    one, other = (load_file(path) for name in "ab" for path in sorted((tmp_path / name).glob("*.safetensors")))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_plan_reads_params_json(plain, capsys):
    _, own = plain
    (own / "consolidated.safetensors").unlink()
    assert main(["plan", str(own / "params.json")]) == 0
    assert "WEIGHTS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": None}, "it lacks dim"),
        ({"dim": "x"}, "hidden_size must be a positive integer"),
        ({"model_type": "mamba"}, "model_type 'mamba' is not implemented"),
        ({"multimodal": {"whisper_model_args": {}}}, "a model that hears"),
        ({"sliding_window": [7, 8, None]}, "no pattern of one size for 3 layers"),
        ({"sliding_window": [7, None]}, "no pattern of one size for 3 layers"),
        ({"sliding_window": "9" * 5000}, "sliding_window must be"),
        ({"llama_4_scaling": {"beta": 0.1}}, "without yarn"),
        ({"yarn": {"factor": 2}}, "original_max_position_embeddings must be"),
        ({"yarn": [1]}, "yarn must be an object"),
        ({"kv_lora_rank": 4}, "without experts"),
        ({"moe": {"num_experts": 4}}, "num_experts_per_tok must be"),
        ({"quantization": {"qformat_weight": "int3"}}, "only qformat_weight 'fp8_e4m3'"),
        ({"vision_encoder": {"image_size": 8, "max_image_size": 9}}, "max_image_size 9 is not its image_size"),
    ],
)
def test_what_is_not_implemented_is_named(plain, changes, message):
    _, own = plain
    params = json.loads((own / "params.json").read_text())
    (own / "params.json").write_text(json.dumps(params | changes))
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_folder(own)


def test_unknown_keys_are_named(plain, caplog):
    _, own = plain
    params = json.loads((own / "params.json").read_text())
    (own / "params.json").write_text(json.dumps(params | {"strange": 1}))
    ModelConfig.from_folder(own)
    assert "params.json: ignored, since nothing is known about them: strange" in caplog.text


VALUES = (None, 0, -1, 1, 3, 1 << 40, 1.5, float("nan"), float("inf"), True, "", "7", [], [1], [None, 7], {}, {"a": 1})
STATED = {
    "moe": {"num_experts": 4, "num_experts_per_tok": 2},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 32},
    "llama_4_scaling": {"beta": 0.1}, "vision_encoder": {"image_size": 8, "mm_projector_id": "patch_merge"},
    "sliding_window": 7, "quantization": {"qformat_weight": "fp8_e4m3"}, "kv_lora_rank": 4, "model_type": "transformer",
}  # fmt: skip


def test_damaged_params_are_an_error_or_a_config(tmp_path):
    """Of 600 files with one or two other values; no other error than ModelLoadError."""
    source = tmp_path / "source"
    source.mkdir()
    save_model(source, PLAIN[0], PLAIN[1] | {"vocab_size": 301})
    own = write_own_layout(source, tmp_path / "own")
    whole = json.loads((own / "params.json").read_text())
    rng, num_read = random.Random(0), 0
    for _ in range(600):
        params = copy.deepcopy(whole)
        params |= copy.deepcopy({name: STATED[name] for name in rng.sample(sorted(STATED), rng.randrange(3))})
        for _ in range(rng.choice((1, 1, 2))):
            places = [params, *(value for value in params.values() if isinstance(value, dict) and value)]
            place = rng.choice(places)
            place[rng.choice(sorted(place))] = copy.deepcopy(rng.choice(VALUES))
        (own / "params.json").write_text(json.dumps(params))
        with contextlib.suppress(ModelLoadError):
            ModelConfig.from_folder(own)
            num_read += 1
    assert 20 < num_read < 580
