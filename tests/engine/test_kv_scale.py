"""The scales of an fp8 KV cache: from the checkpoint, from the first batch, and their way through sleep and weights.

Blocks mean something only together with the scales they were written with: scales change exactly when no block is left.
"""

import json
import shutil

import pytest
import torch
from kit.engine.parts import kv_caches_of, kv_scales_of, model_of
from kit.engine.prompts import random_prompts
from safetensors.torch import load_file, save_file

from lullm import LLM, SamplingParams
from lullm.errors import ModelLoadError
from lullm.nn.kv_scale import KEY_RANGE, VALUE_RANGE

OPTIONS = {"dtype": "float32", "max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 80}
SLEEPY = {**OPTIONS, "kv_cache_dtype": "fp8", "enable_sleep_mode": True}
PROMPTS = random_prompts(6, 60)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


@pytest.fixture(scope="module")
def scaled_folder(qwen3_folder, tmp_path_factory):
    """The checkpoint with scales, as people name them: two layers that have some, one that has none."""
    folder = tmp_path_factory.mktemp("scaled") / "model"
    shutil.copytree(qwen3_folder, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.k_scale"] = torch.tensor(0.5)
    tensors["model.layers.0.self_attn.v_scale"] = torch.tensor([0.25, 0.125], dtype=torch.bfloat16)
    tensors["model.layers.0.self_attn.q_scale"] = torch.tensor(3.0)
    tensors["model.layers.1.self_attn.k_proj.output_scale"] = torch.tensor([2.0])
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "config_groups": {},
        "kv_cache_scheme": scheme,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def scales_of(llm):
    """`[2, Hkv]` of each layer, as nested lists."""
    layers = model_of(llm).model.layers
    return [
        [layer.self_attn.kv_scales.k_scale.tolist(), layer.self_attn.kv_scales.v_scale.tolist()] for layer in layers
    ]


def addresses_of(llm):
    return [(s.k_scale.data_ptr(), s.v_scale.data_ptr()) for s in kv_scales_of(llm)]


ONES = [[[1.0, 1.0], [1.0, 1.0]]] * 3
GIVEN = [[[0.5, 0.5], [0.25, 0.125]], [[2.0, 2.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]]


def test_the_checkpoints(scaled_folder, qwen3_folder):
    for folder, expected in ((scaled_folder, GIVEN), (qwen3_folder, ONES)):
        with LLM(str(folder), **OPTIONS, kv_cache_dtype="fp8_e4m3") as llm:
            llm.generate(PROMPTS, SHORT, use_tqdm=False)
            assert scales_of(llm) == expected
    with LLM(str(scaled_folder), **OPTIONS) as llm:
        assert not kv_scales_of(llm), "'auto' is no fp8, whatever the checkpoint was made for"
        assert {cache.dtype for layer in kv_caches_of(llm) for cache in layer.tensors} == {torch.float32}


def test_a_scale_that_is_none(scaled_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(scaled_folder, folder)
    tensors = load_file(folder / "model.safetensors")
    for wrong in (torch.tensor(0.0), torch.tensor([1.0, float("nan")]), torch.ones(3)):
        tensors["model.layers.0.self_attn.k_scale"] = wrong
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(ModelLoadError, match=r"model\.layers\.0\.self_attn\.k_scale"):
            LLM(str(folder), **OPTIONS, kv_cache_dtype="fp8")


@pytest.mark.parametrize("chunk", [2048, 16])
def test_the_first_batchs(qwen3_folder, chunk):
    """Its largest key and value of each head come to lie at 192 and 96; later batches change nothing."""
    options = {**OPTIONS, "max_num_batched_tokens": chunk, "max_num_seqs": 8}
    with LLM(str(qwen3_folder), **options, kv_cache_dtype="fp8", calculate_kv_scales=True) as llm:
        assert scales_of(llm) == ONES, "no step of the start is anybody's first batch"
        llm.generate(PROMPTS[0], SHORT, use_tqdm=False)
        found = scales_of(llm)
        llm.generate(PROMPTS[1:], SHORT, use_tqdm=False)
        assert scales_of(llm) == found
    with LLM(str(qwen3_folder), **options, swap_space=0) as llm:
        llm.generate(PROMPTS[0][:chunk], SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
        for number, (layer, caches) in enumerate(zip(found, kv_caches_of(llm), strict=True)):
            heads = caches.share(0, 1, len(layer[0]))
            for scales, cache, top in zip(layer, heads.tensors, (KEY_RANGE, VALUE_RANGE), strict=True):
                wanted = pytest.approx((cache.abs().amax((0, 1, 3)) / top).tolist(), rel=0.15 if number else 1e-5)
                assert scales == wanted, "exact in the first layer, whose input has seen no rounding"


def test_the_checkpoints_come_before_the_first_batchs(scaled_folder):
    with LLM(str(scaled_folder), **SLEEPY, calculate_kv_scales=True) as llm:
        llm.generate(PROMPTS, SHORT, use_tqdm=False)
        [first, (keys, values), third] = scales_of(llm)
        assert first == GIVEN[0] and keys == GIVEN[1][0]
        assert 1.0 not in values + third[0] + third[1]
        llm.sleep()
        llm.wake_up()
        assert scales_of(llm) == GIVEN


def run(llm, sleep_at=None, **call):
    """All prompts through the engine, with a sleep after so many steps: (tokens, scales before and after it)."""
    engine, ended, seen = llm.llm_engine, {}, []
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, GREEDY)
    for step in range(1000):
        if not engine.has_unfinished_requests():
            break
        ended |= {o.request_id: o.outputs[0].token_ids for o in engine.step() if o.finished}
        if step == sleep_at:
            seen.append(scales_of(llm))
            llm.sleep(**call)
            llm.wake_up()
            seen.append(scales_of(llm))
    return [ended[str(number)] for number in range(len(PROMPTS))], seen


@pytest.fixture
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), **SLEEPY, calculate_kv_scales=True) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    with LLM(str(qwen3_folder), **SLEEPY, calculate_kv_scales=True) as llm:
        return run(llm)[0]


KEEPING = [{"level": 1}, {"level": 1, "backup": "ram"}, {"level": 1, "tags": ["kv_cache"]}, {"level": 0}]
KEEPING += [{"level": 1, "tags": ["weights"]}]


@pytest.mark.parametrize("call", KEEPING, ids=str)
def test_kept_with_the_blocks(llm, expected, call):
    addresses = addresses_of(llm)
    found, (before, after) = run(llm, sleep_at=5, **call)
    assert found == expected and after == before != ONES
    assert addresses_of(llm) == addresses


@pytest.mark.parametrize("call", [{"level": 2}, {"level": 2, "tags": ["kv_cache"]}], ids=str)
def test_reset_when_the_blocks_are_given_up(llm, expected, call):
    addresses = addresses_of(llm)
    found, (before, after) = run(llm, sleep_at=5, **call)
    assert before != ONES and after == ONES
    assert scales_of(llm) != ONES, "found anew, in the batch that computes everything again"
    assert sum(map(len, found)) == sum(map(len, expected)) and addresses_of(llm) == addresses
    llm.sleep()
    llm.wake_up()
    assert run(llm)[0] == expected, "as after a start"


def test_the_prefix_cache_keeps_its_scales(llm):
    [first] = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    scales = scales_of(llm)
    llm.sleep(keep_prefix_cache=True)
    llm.wake_up()
    [second] = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    assert second.num_cached_tokens > 8 and scales_of(llm) == scales
    assert second.outputs[0].token_ids == first.outputs[0].token_ids
    llm.sleep()
    llm.wake_up()
    assert scales_of(llm) == ONES


def test_new_weights_find_new_scales(llm, qwen3_folder):
    name = "model.layers.0.self_attn.v_proj.weight"
    weight = load_file(qwen3_folder / "model.safetensors")[name]
    llm.generate(PROMPTS[0], SHORT, use_tqdm=False)
    before = scales_of(llm)
    llm.update_weights([(name, weight * 4)])
    llm.generate(PROMPTS[0], SHORT, use_tqdm=False)
    assert scales_of(llm)[0][1] == pytest.approx([4 * scale for scale in before[0][1]])


def test_pushed_scales(llm):
    """They count like the checkpoint's, survive a sleep of level 1, and go with the next reading of the checkpoint."""
    llm.update_weights([("model.layers.2.self_attn.kv_scale", torch.tensor(4.0))])
    pushed = [*ONES[:2], [[4.0, 4.0], [4.0, 4.0]]]
    assert scales_of(llm) == pushed
    llm.generate(PROMPTS[0], SHORT, use_tqdm=False)
    assert scales_of(llm)[2] == pushed[2] and scales_of(llm)[0] != ONES[0]
    for _ in range(2):
        llm.sleep()
        llm.wake_up()
        assert scales_of(llm) == pushed
    llm.collective_rpc("reload_weights")
    assert scales_of(llm) == ONES
    with pytest.raises(ModelLoadError, match="positive"):
        llm.update_weights([("model.layers.2.self_attn.k_scale", torch.tensor(-1.0))])
