"""`reload_weights(weights_path)`: a trainer saves a checkpoint, and a running engine takes it in place of its own."""

import shutil

import pytest
import torch
from kit.engine.parts import store_of
from kit.engine.prompts import random_prompts
from kit.folder.checkpoint import write_checkpoint
from safetensors.torch import load_file, save_file

from lullm import LLM, SamplingParams
from lullm.errors import EngineAsleepError, InvalidRequestError, ModelLoadError, UnsupportedError, WakeUpError

OPTIONS = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 24, "enable_sleep_mode": True}
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = random_prompts(1, 40)[0]
FILE = "model.safetensors"


def changed_copy(source, folder, change):
    shutil.copytree(source, folder)
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory, qwen3_folder):
    """What a trainer has saved: the same model with other weights."""

    def train(tensors):
        torch.manual_seed(0)
        tensors |= {name: t + 0.5 * t.std() * torch.randn_like(t) for name, t in tensors.items() if t.ndim == 2}

    return changed_copy(qwen3_folder, tmp_path_factory.mktemp("trained") / "step-0", train)


@pytest.fixture
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        yield llm


def token_ids(llm):
    return llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids


@pytest.fixture(scope="module")
def expected(trained, qwen3_folder):
    found = []
    for folder in (qwen3_folder, trained):
        with LLM(str(folder), **OPTIONS) as llm:
            found.append(token_ids(llm))
    assert found[0] != found[1]
    return found


def test_it_takes_the_place_of_the_first(llm, trained, expected):
    assert token_ids(llm) == expected[0]
    llm.reload_weights(trained)
    assert token_ids(llm) == expected[1], "and no prefix of the old weights is found"
    assert llm.collective_rpc("modified_weights") == [[]], "nothing has to be saved for a sleep"
    for level in (1, 2):
        assert llm.sleep(level).backed_up_bytes == 0
        llm.wake_up()
        assert token_ids(llm) == expected[1]
    llm.update_weights([("model.norm.weight", torch.linspace(0.5, 2.0, 64))])
    assert token_ids(llm) != expected[1]
    llm.reload_weights()
    assert token_ids(llm) == expected[1]


def test_by_the_name_that_vllm_has(llm, trained, qwen3_folder, expected):
    assert llm.collective_rpc("reload_weights", kwargs={"weights_path": str(trained)}) == [None]
    assert token_ids(llm) == expected[1]
    llm.llm_engine.add_request("x", PROMPT, PARAMS)
    for _ in range(5):
        llm.llm_engine.step()
    llm.collective_rpc("reload_weights", kwargs={"weights_path": qwen3_folder})
    while llm.llm_engine.has_unfinished_requests():
        [output] = llm.llm_engine.step()
    drawn = output.outputs[0].token_ids
    assert drawn[:4] == expected[1][:4] and len(drawn) == 12, "a running request keeps its tokens"
    assert token_ids(llm) == expected[0]


def test_dummy_weights_are_replaced(qwen3_folder, expected):
    with LLM(str(qwen3_folder), **OPTIONS, load_format="dummy") as llm:
        llm.sleep(2)
        llm.wake_up()
        assert token_ids(llm) != expected[0]
        llm.reload_weights(qwen3_folder)
        assert token_ids(llm) == expected[0]
        llm.sleep(2)
        llm.wake_up()
        assert token_ids(llm) == expected[0]


def test_between_the_wake_ups_it_is_newer_than_what_was_pushed(llm, trained, expected):
    llm.sleep(2)
    with pytest.raises(EngineAsleepError, match="weights are asleep"):
        llm.reload_weights(trained)
    llm.wake_up(tags=["weights"])
    llm.update_weights([("model.norm.weight", torch.linspace(0.5, 2.0, 64))])
    llm.reload_weights(trained)
    llm.wake_up(tags=["kv_cache"])
    assert token_ids(llm) == expected[1]


def test_what_is_no_checkpoint_of_this_model_changes_nothing(llm, trained, tmp_path, expected):
    (tmp_path / "empty").mkdir()
    larger = write_checkpoint(tmp_path / "larger", "qwen3", hidden_size=128)
    for path, words in (
        (tmp_path / "none", "there is no model folder"),
        (tmp_path / "empty", "lacks the weight files"),
        (larger, "do not fit its config(.|\n)*hidden_size"),
        (5, "must be a path, not 5"),
    ):
        with pytest.raises(InvalidRequestError, match=words) as error:
            llm.reload_weights(path)
        assert error.value.param == "weights_path"
    for given in ({"kwargs": {"path": str(trained)}}, {"args": (str(trained),)}):
        with pytest.raises(InvalidRequestError, match="takes no arguments but weights_path, by keyword"):
            llm.collective_rpc("reload_weights", **given)
    with pytest.raises(UnsupportedError, match="timeout"):
        llm.collective_rpc("reload_weights", timeout=1.0, kwargs={"weights_path": str(trained)})
    assert llm.sleep_state == "awake" and token_ids(llm) == expected[0]


def test_one_that_breaks_off_leaves_the_first(llm, trained, tmp_path, expected):
    """A tensor that is missing shows once all have been read, and some parameters are the new ones by then."""
    folder = changed_copy(trained, tmp_path / "cut", lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ModelLoadError, match=r"missing tensor model\.layers\.1\.mlp\.up_proj"):
        llm.reload_weights(folder)
    assert llm.sleeping_tags == ("weights",)
    llm.wake_up()
    assert token_ids(llm) == expected[0]


def test_one_that_has_gone_is_missed_by_the_wake_up(llm, trained, tmp_path, expected):
    folder = changed_copy(trained, tmp_path / "step-1", lambda tensors: None)
    llm.reload_weights(folder)
    llm.sleep(1)
    folder.rename(tmp_path / "gone")
    with pytest.raises(WakeUpError, match="step-1"):
        llm.wake_up()
    (tmp_path / "gone").rename(folder)
    llm.wake_up()
    assert token_ids(llm) == expected[1]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_it_is_quantized_as_the_first_was(qwen3_folder, trained, quantization):
    found = []
    for folder in (trained, qwen3_folder):
        with LLM(str(folder), **OPTIONS, quantization=quantization) as llm:
            llm.reload_weights(trained)
            assert llm.collective_rpc("modified_weights") == [[]]
            found.append(token_ids(llm))
            checksums = llm.llm_engine.model_executor.weight_checksums()
            assert store_of(llm).checkpoint == trained
            found.append(checksums)
    assert found[:2] == found[2:]
