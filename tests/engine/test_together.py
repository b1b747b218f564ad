"""What changes how a token is computed, two at a time: adapters, pictures, a draft model, another process."""

import shutil
from pathlib import Path

import pytest
from kit.engine.prompts import random_prompts
from kit.engine.same_tokens import tokens_of
from kit.folder.draft import write_draft
from kit.model.lora import write_adapter
from kit.vision.checkpoint import picture, write_llava

from lullm import LLM, LoRARequest, SamplingParams
from lullm.errors import HibernationError

OPTIONS = {"dtype": "float32", "max_model_len": 256, "block_size": 8, "num_gpu_blocks_override": 160}
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
PROMPTS = random_prompts(4, 40)
PICTURES = [picture(61, 40), picture(28, 90, seed=1)]
SHOWN = [
    {"prompt": "USER: <image>\nwhat fox? ASSISTANT:", "multi_modal_data": {"image": PICTURES[:1]}},
    {"prompt": "<image> jumps over <image>the lazy dog", "multi_modal_data": {"image": PICTURES}},
    {"prompt": "hello world, the quick"},
]


@pytest.fixture(scope="module")
def draft(qwen3_folder, tmp_path_factory):
    return write_draft(qwen3_folder, tmp_path_factory.mktemp("draft"), noise=0.02)


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return str(write_llava(tmp_path_factory.mktemp("llava")).folder)


def guessing(model):
    return {"model": str(model), "num_speculative_tokens": 3, "adaptive": False}


def generate(llm, prompts, **more):
    return [tokens for [tokens] in tokens_of(llm.generate(prompts, GREEDY, use_tqdm=False, **more))]


def go_on_elsewhere(folder, prompts, path, num_steps, **options):
    """The tokens of prompts that another engine takes over after so many steps."""
    found = {}
    with LLM(folder, **options) as llm:
        for number, prompt in enumerate(prompts):
            llm.llm_engine.add_request(str(number), prompt, GREEDY)
        for _ in range(num_steps):
            llm.llm_engine.step()
        llm.llm_engine.hibernate(path)
    with LLM(folder, **options) as llm:
        assert llm.llm_engine.resume(path).request_ids == tuple(map(str, range(len(prompts))))
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                found[output.request_id] = list(output.outputs[0].token_ids)
    return [found[str(number)] for number in range(len(prompts))]


def test_a_draft_model_guesses_for_adapters(qwen3_folder, draft, tmp_path):
    adapter = LoRARequest("a", 1, str(write_adapter(tmp_path / "a", qwen3_folder, seed=1, rank=4, alpha=8.0)))
    options = {**OPTIONS, "enable_lora": True, "max_lora_rank": 8}
    each = [adapter, None, adapter, None]
    with LLM(str(qwen3_folder), **options) as llm:
        expected = generate(llm, PROMPTS, lora_request=each)
    with LLM(str(qwen3_folder), speculative_config=guessing(draft), **options) as llm:
        assert generate(llm, PROMPTS, lora_request=each) == expected
        assert llm.llm_engine.stats().accepted_tokens_total > 0


def test_a_draft_model_goes_on_elsewhere(qwen3_folder, draft, tmp_path):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        expected = generate(llm, PROMPTS)
    options = {**OPTIONS, "speculative_config": guessing(draft)}
    assert go_on_elsewhere(str(qwen3_folder), PROMPTS, tmp_path / "h", 3, **options) == expected


@pytest.mark.parametrize("num_steps", [1, 2, 9])
def test_pictures_go_on_elsewhere(llava, tmp_path, num_steps):
    """After one step a prompt is in the middle of a picture, which comes along; after nine tokens are drawn."""
    with LLM(llava, **OPTIONS) as llm:
        expected = generate(llm, SHOWN)
    options = {**OPTIONS, "max_num_batched_tokens": 16, "max_num_seqs": 4}
    assert go_on_elsewhere(llava, SHOWN, tmp_path / "h", num_steps, **options) == expected


def test_a_draft_model_guesses_behind_pictures(llava):
    """It sees the places of pictures as tokens, so it guesses worse, and no token changes."""
    with LLM(llava, **OPTIONS) as llm:
        expected = generate(llm, SHOWN)
    with LLM(llava, speculative_config=guessing(llava), **OPTIONS) as llm:
        assert generate(llm, SHOWN) == expected
        assert llm.llm_engine.stats().drafts_total > 0


def write_adapters(qwen3_folder, tmp_path, num):
    folders = (write_adapter(tmp_path / f"a{n}", qwen3_folder, seed=n, rank=4, alpha=8.0) for n in range(num))
    return [LoRARequest(f"a{n}", n + 1, str(folder)) for n, folder in enumerate(folders)]


@pytest.mark.parametrize("num_steps", [1, 2, 9])
@pytest.mark.parametrize("elsewhere", [{}, {"max_loras": 1}, {"max_num_seqs": 2}], ids=str)
def test_adapters_go_on_elsewhere(qwen3_folder, tmp_path, num_steps, elsewhere):
    """Where there are fewer places, or sequences, some are computed again; KV is found by the content of adapters."""
    options = {**OPTIONS, "enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    each = [*write_adapters(qwen3_folder, tmp_path, 3), None]
    with LLM(str(qwen3_folder), **options) as llm:
        expected = generate(llm, PROMPTS, lora_request=each)
    found = {}
    with LLM(str(qwen3_folder), **options) as llm:
        llm.llm_engine.add_lora(LoRARequest("other", 9, each[0].lora_path))  # numbers there are not numbers here
        for number, (prompt, lora) in enumerate(zip(PROMPTS, each, strict=True)):
            llm.llm_engine.add_request(str(number), prompt, GREEDY, lora_request=lora)
        for _ in range(num_steps):
            llm.llm_engine.step()
        llm.llm_engine.hibernate(tmp_path / "h")
    with LLM(str(qwen3_folder), **options | elsewhere) as llm:
        report = llm.llm_engine.resume(tmp_path / "h")
        assert report.request_ids == tuple(map(str, range(len(PROMPTS))))
        assert elsewhere or not report.num_recomputed
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                found[output.request_id] = list(output.outputs[0].token_ids)
        assert generate(llm, PROMPTS, lora_request=each) == expected
    assert [found[str(number)] for number in range(len(PROMPTS))] == expected


def test_what_an_adapter_needs_elsewhere(qwen3_folder, tmp_path):
    options = {**OPTIONS, "enable_lora": True, "max_lora_rank": 8}
    [lora] = write_adapters(qwen3_folder, tmp_path, 1)
    with LLM(str(qwen3_folder), **options) as llm:
        llm.llm_engine.add_request("0", PROMPTS[0], GREEDY, lora_request=lora)
        llm.llm_engine.step()
        llm.llm_engine.hibernate(tmp_path / "h")
    with (
        LLM(str(qwen3_folder), **OPTIONS) as llm,
        pytest.raises(HibernationError, match="'0' needs its adapter: .* enable_lora=True"),
    ):
        llm.llm_engine.resume(tmp_path / "h")
    shutil.rmtree(lora.lora_path)
    write_adapter(Path(lora.lora_path), qwen3_folder, seed=5, rank=4, alpha=8.0)
    with LLM(str(qwen3_folder), **options) as llm:
        with pytest.raises(HibernationError, match="'0' needs its adapter: .* has another content than when"):
            llm.llm_engine.resume(tmp_path / "h")
        assert len(generate(llm, PROMPTS[:1], lora_request=lora)[0]) == GREEDY.max_tokens, "the engine goes on"
