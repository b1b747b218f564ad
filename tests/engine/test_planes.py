"""Models with planes of positions (Qwen-VL, GLM-V) in a whole engine: what `test_vision` does not ask of all."""

import pytest
import torch
from kit.vision.checkpoint import picture, write_glm4v, write_internvl, write_qwen_vl
from kit.worker.threads import use_threads
from safetensors.torch import load_file, save_file

from lullm import LLM, SamplingParams
from lullm.errors import InvalidRequestError, ModelLoadError, UnsupportedError

OPTIONS = {"dtype": "float32", "max_model_len": 512, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
PICTURES = [picture(61, 40), picture(28, 90, seed=1)]
TEXT = "a @ jumps over @the lazy dog"


@pytest.fixture(scope="module", params=["Qwen2_5_VL", "Qwen3VL", "Glm4v"])
def checkpoint(request, tmp_path_factory):
    write = write_glm4v if request.param.startswith("Glm") else write_qwen_vl
    return write(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def prompt(checkpoint):
    return {"prompt": TEXT.replace("@", checkpoint.word), "multi_modal_data": {"image": PICTURES}}


@pytest.fixture(scope="module")
def expected(checkpoint, prompt):
    return checkpoint.continued(prompt["prompt"], PICTURES, 8)


def check(output, expected):
    ids, tokens, logprobs = expected
    assert output.prompt_token_ids == ids and list(output.outputs[0].token_ids) == tokens
    drawn = [row[token].logprob for row, token in zip(output.outputs[0].logprobs, tokens, strict=True)]
    assert drawn == pytest.approx(logprobs, abs=1e-4)


def test_log_probabilities_of_the_prompt(checkpoint, prompt, expected):
    inputs = checkpoint.inputs(prompt["prompt"], PICTURES)
    with torch.inference_mode():
        rows = checkpoint.model(**inputs).logits[0].log_softmax(-1)
    ids = expected[0]
    known = [float(rows[place, ids[place + 1]]) for place in range(len(ids) - 1)]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    for options in ({}, {"max_num_batched_tokens": 16, "max_num_seqs": 2}):
        with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
            [output] = llm.generate(prompt, params, use_tqdm=False)
        found = [
            row[token].logprob
            for row, token in zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
        ]
        assert found == pytest.approx(known, abs=1e-4)


OTHER_NAMES = {
    "model.visual.": "visual.", "model.language_model.": "model.",
    "visual.": "model.visual.", "model.": "model.language_model.",
}  # fmt: skip


def test_the_other_names(checkpoint, prompt, expected, tmp_path):
    """Older ones are those of Qwen2-VL's files, newer ones of Qwen3-VL's."""
    tensors = {}
    for name, tensor in load_file(checkpoint.folder / "model.safetensors").items():
        prefix = next((prefix for prefix in OTHER_NAMES if name.startswith(prefix)), "lm_head")
        tensors[OTHER_NAMES.get(prefix, prefix) + name.removeprefix(prefix)] = tensor
    assert ("model.norm.weight" in tensors) == ("visual.blocks.0.attn.qkv.weight" in tensors)
    for path in checkpoint.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with LLM(str(tmp_path), **OPTIONS) as llm:
        check(llm.generate(prompt, GREEDY, use_tqdm=False)[0], expected)


def test_a_hibernation_in_the_middle_of_a_picture(checkpoint, prompt, expected, tmp_path):
    options = OPTIONS | {"max_num_batched_tokens": 16, "max_num_seqs": 2}
    for num_steps in (1, 3, 8):  # in the first picture, in the second, behind them
        with LLM(str(checkpoint.folder), **options) as llm:
            llm.llm_engine.add_request("a", prompt, GREEDY)
            for _ in range(num_steps):
                llm.llm_engine.step()
            llm.llm_engine.hibernate(tmp_path / str(num_steps))
        with LLM(str(checkpoint.folder), **options) as llm:
            llm.llm_engine.resume(tmp_path / str(num_steps))
            outputs = []
            while llm.llm_engine.has_unfinished_requests():
                outputs += llm.llm_engine.step()
            check(outputs[-1], expected)


def test_a_draft_model(checkpoint, prompt, expected):
    """It sees tokens in place of pictures, and their places as positions: it may guess wrong, and never more."""
    guesses = {"model": str(checkpoint.folder), "num_speculative_tokens": 3}
    with LLM(str(checkpoint.folder), **OPTIONS, speculative_config=guesses) as llm:
        [names] = llm.collective_rpc(lambda worker: [n for n, _ in worker.draft.loaded.model.named_parameters()])
        assert names and not [name for name in names if "vision" in name]
        check(llm.generate(prompt, GREEDY, use_tqdm=False)[0], expected)


def test_a_long_answer_behind_pictures(checkpoint, prompt):
    """Up to the end of `max_model_len`, with and without recorded steps and guesses."""
    params, found = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True), []
    guesses = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    for options in ({}, {"enforce_eager": True}, guesses):
        with LLM(str(checkpoint.folder), **OPTIONS | {"max_model_len": 200} | options) as llm:
            [output] = llm.generate(prompt, params, use_tqdm=False)
            found.append(output.outputs[0].token_ids)
            assert len(output.prompt_token_ids) + len(found[-1]) == 200
    assert found[0] == found[1] == found[2]


def test_what_is_refused(checkpoint):
    thin = {"prompt": checkpoint.word, "multi_modal_data": {"image": picture(2, 402)}}
    video = [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}, {"type": "text", "text": "a"}]}]
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        with pytest.raises(InvalidRequestError, match="200 times as long"):
            llm.generate(thin, use_tqdm=False)
        for kind in ("video", "video_url"):
            video[0]["content"][0]["type"] = kind
            with pytest.raises(InvalidRequestError, match="video"):
                llm.chat(video, use_tqdm=False)


def test_smaller_pictures(checkpoint):
    """By an option of the engine, of prompts or of conversations; also in other processes."""
    smaller = {"size": {"shortest_edge": 64, "longest_edge": 64 * 10}}
    is_glm = type(checkpoint.model).__name__.startswith("Glm")  # which knows one name for the bounds
    settings = smaller if is_glm else {"min_pixels": 64, "max_pixels": 64 * 10}
    text, shown = f"a {checkpoint.word} b", PICTURES[:1]
    plain = {"prompt": text, "multi_modal_data": {"image": shown}}
    ids = checkpoint.inputs(text, shown, **smaller)["input_ids"][0].tolist()
    messages = [{"role": "user", "content": [{"type": "image_pil", "image_pil": shown[0]}]}]
    backend = {"distributed_executor_backend": "mp"}
    with LLM(str(checkpoint.folder), **OPTIONS, **backend, mm_processor_kwargs=settings) as llm:
        [expected] = llm.generate(plain, GREEDY, use_tqdm=False)
        [chatted] = llm.chat(messages, GREEDY, use_tqdm=False)
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        [found] = llm.generate(plain | {"mm_processor_kwargs": settings}, GREEDY, use_tqdm=False)
        [answer] = llm.chat(messages, GREEDY, use_tqdm=False, mm_processor_kwargs=settings)
        [longer] = llm.generate(plain, GREEDY, use_tqdm=False)
        assert llm.generate({"prompt": "a", "mm_processor_kwargs": settings}, GREEDY, use_tqdm=False)
        with pytest.raises(UnsupportedError, match="in the dict of a prompt"):
            llm.generate(plain, GREEDY, mm_processor_kwargs=settings)
    assert expected.prompt_token_ids == found.prompt_token_ids == ids != longer.prompt_token_ids
    assert expected.outputs[0].token_ids == found.outputs[0].token_ids
    assert chatted.prompt_token_ids == answer.prompt_token_ids
    assert chatted.outputs[0].token_ids == answer.outputs[0].token_ids


OTHERS = {
    "Qwen2VL": lambda folder: write_qwen_vl(folder, "Qwen2VL"),
    "Qwen3VLMoe": lambda folder: write_qwen_vl(folder, "Qwen3VLMoe", {"deepstack_visual_indexes": [0, 1]}),
    "InternVL with experts": lambda folder: write_internvl(folder, text="qwen3_moe"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_families(tmp_path, name):
    checkpoint = OTHERS[name](tmp_path)
    text = TEXT.replace("@", checkpoint.word)
    with LLM(str(tmp_path), **OPTIONS | {"max_num_batched_tokens": 16, "max_num_seqs": 2}) as llm:
        prompt = {"prompt": text, "multi_modal_data": {"image": PICTURES}}
        check(llm.generate(prompt, GREEDY, use_tqdm=False)[0], checkpoint.continued(text, PICTURES, 8))


def test_a_pipeline_whose_first_stage_has_too_few_layers(tmp_path, monkeypatch):
    use_threads(monkeypatch)
    write_qwen_vl(tmp_path, "Qwen3VL", {"deepstack_visual_indexes": [0, 1]})
    with pytest.raises(ModelLoadError, match="first 2 layers .* not 1; set pipeline_layers"):
        LLM(str(tmp_path), **OPTIONS, pipeline_parallel_size=2)
    sees_none = {"image": 0, "video": 0}
    with LLM(str(tmp_path), **OPTIONS, pipeline_parallel_size=2, limit_mm_per_prompt=sees_none) as llm:
        assert llm.generate("a", GREEDY, use_tqdm=False)
