"""Beam search inside the engine, against transformers' generate (fp32)."""

import pytest
import torch
from kit.engine.parts import block_space_of
from kit.engine.prompts import random_prompts
from transformers import AutoModelForCausalLM

from lullm import LLM, SamplingParams
from lullm.errors import InvalidRequestError

SETTINGS = [
    {"beam_width": 1},
    {"beam_width": 2},
    {"beam_width": 4},
    {"beam_width": 4, "length_penalty": 0.0, "early_stopping": "never"},
    {"beam_width": 4, "length_penalty": 2.0, "early_stopping": "never"},
    {"beam_width": 3, "length_penalty": -1.0},
    {"beam_width": 4, "early_stopping": True},
    {"beam_width": 6, "length_penalty": 0.5, "early_stopping": True},
]


@pytest.fixture(scope="module")
def model(qwen3_folder):
    return AutoModelForCausalLM.from_pretrained(qwen3_folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=128) as llm:
        yield llm


def lines(outputs):
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def expected(model, prompt, settings, max_tokens, eos):
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_tokens,
            do_sample=False,
            num_beams=settings["beam_width"],
            num_return_sequences=settings["beam_width"],
            length_penalty=settings.get("length_penalty", 1.0),
            early_stopping=settings.get("early_stopping", False),
            eos_token_id=eos,
            pad_token_id=999,
        )
    lines = [line[len(prompt) :].tolist() for line in found]
    return [line[: line.index(999)] if 999 in line else line for line in lines]


@pytest.mark.parametrize("settings", SETTINGS[1:], ids=str)
@pytest.mark.parametrize("num_eos", [0, 1, 60])
def test_beams_equal_transformers(model, llm, settings, num_eos, monkeypatch):
    # With 60 of 320 tokens ending a line, hypotheses finish all the time; with none, only the length ends them.
    eos = list(range(10, 10 + num_eos))
    monkeypatch.setattr(llm.llm_engine.input_processor._generation, "_eos_token_ids", tuple(eos))
    prompts = random_prompts(3, 40, seed=7)
    outputs = llm.beam_search(prompts, max_tokens=12, **settings)
    for prompt, output in zip(prompts, outputs, strict=True):
        ours = [completion.token_ids for completion in output.outputs]
        assert ours == expected(model, prompt, settings, 12, eos or None)
        for completion in output.outputs:
            assert completion.finish_reason == ("stop" if completion.token_ids[-1] in eos else "length")


def test_one_beam_is_greedy(llm):
    prompts = random_prompts(3, 40)
    beams = llm.beam_search(prompts, 1, max_tokens=10, ignore_eos=True)
    greedy = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=10, ignore_eos=True), use_tqdm=False)
    assert [b.outputs[0].token_ids for b in beams] == [g.outputs[0].token_ids for g in greedy]


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("chunk", [6, 2048])
def test_beams_survive_preemption_and_chunks(llm, qwen3_folder, mode, chunk):
    prompts = random_prompts(6, 60, seed=5)
    roomy = llm.beam_search(prompts, 4, max_tokens=30, ignore_eos=True)
    with LLM(
        str(qwen3_folder),
        dtype="float32",
        max_model_len=128,
        block_size=4,
        num_gpu_blocks_override=70,
        preemption_mode=mode,
        max_num_batched_tokens=chunk,
        max_num_seqs=min(chunk, 64),
    ) as tight:
        found = tight.beam_search(prompts, 4, max_tokens=30, ignore_eos=True)
        assert lines(found) == lines(roomy)
        assert chunk == 6 or tight.llm_engine.stats().num_preemptions > 0
        block_space_of(tight).check_conservation()
        assert tight.llm_engine.stats().num_used_blocks == 0


def test_beams_share_blocks(llm):
    engine = llm.llm_engine
    engine.add_request("b", list(range(3, 67)), SamplingParams(n=4, beam_width=4, max_tokens=20, ignore_eos=True))
    most = 0
    while engine.has_unfinished_requests():
        engine.step()
        most = max(most, engine.stats().num_used_blocks)
    assert most <= 4 + 4 * 2, "64 prompt tokens stand once, not four times"


def test_abort_in_the_middle(llm):
    engine = llm.llm_engine
    engine.add_request("b", [5, 6, 7], SamplingParams(n=2, beam_width=3, max_tokens=20, ignore_eos=True))
    engine.step()
    engine.step()
    engine.abort_request("b")
    [output] = engine.step()
    assert output.finished and [c.finish_reason for c in output.outputs] == ["abort", "abort"]
    assert engine.stats().num_used_blocks == 0


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"beam_width": 2, "n": 3}, "n"),
        ({"beam_width": 2, "stop": "x"}, "stop"),
        ({"beam_width": 2, "temperature": 0.7}, "temperature"),
        ({"beam_width": 0}, "beam_width"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"beam_width": 2, "early_stopping": "maybe"}, "early_stopping"),
        ({"beam_width": 2, "logprobs": 1}, "logprobs"),
    ],
)
def test_what_beams_do_not_do_is_refused(params, param):
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(**params)
    assert error.value.param == param
