"""Every family through the engine: the greedy tokens of transformers, whatever the engine does to get them.

Layers with a window have one of 32 tokens, and prompts have up to 96.
"""

import random
from pathlib import Path

import pytest
import torch
from kit.folder.checkpoint import write_tokenizer
from kit.model.families import BY_RARITY, CASES
from kit.model.golden import SIZES, golden_logits, random_model, save

from lullm import LLM, SamplingParams
from lullm.config.model import ModelConfig
from lullm.kv.layout import num_blocks_for_len

OPTIONS = {"dtype": "float32", "max_model_len": 160, "block_size": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
ENGINE_SIZES = SIZES | {"vocab_size": 320, "max_position_embeddings": 256}


def make_prompts() -> list[list[int]]:
    """One that grows beyond the window, and four of 80 to 96 tokens, every second with a common start."""
    rng = random.Random(0)

    def draw(count):
        return [rng.randrange(3, 300) for _ in range(count)]

    shared = draw(60)
    return [draw(8)] + [(shared if i % 2 else draw(60)) + draw(36 - 5 * i) for i in range(4)]


def generate(llm):
    return [output.outputs[0].token_ids for output in llm.generate(make_prompts(), GREEDY, use_tqdm=False)]


@pytest.fixture(scope="module", params=BY_RARITY)
def checkpoint(request, tmp_path_factory):
    """(folder, transformers' tokens and log-probabilities of the prompts, the bound of `test_fewer_bits_stay_near`)."""
    folder = tmp_path_factory.mktemp(request.param)
    model = random_model(request.param, ENGINE_SIZES | CASES[request.param].engine)
    save(model, folder)
    write_tokenizer(folder)
    with LLM(str(folder), **OPTIONS) as llm:
        found = generate(llm)
    logits = [golden_logits(model, prompt + said) for prompt, said in zip(make_prompts(), found, strict=True)]
    tokens = [
        rows[len(prompt) - 1 : -1].argmax(-1).tolist() for prompt, rows in zip(make_prompts(), logits, strict=True)
    ]
    assert found == tokens, "what transformers draws next, behind each that was drawn"
    assert len({token for output in tokens for token in output}) > 10, "a model that says something"
    logprobs = [rows[: len(prompt) - 1].log_softmax(-1) for prompt, rows in zip(make_prompts(), logits, strict=True)]
    of_prompts = [rows[range(len(rows)), prompt[1:]] for rows, prompt in zip(logprobs, make_prompts(), strict=True)]
    return str(folder), tokens, torch.cat(of_prompts), CASES[request.param].loss


def test_chunks_and_the_prefix_cache(checkpoint):
    folder, expected, *_ = checkpoint
    with LLM(folder, **OPTIONS, max_num_batched_tokens=23, max_num_seqs=4) as llm:
        assert generate(llm) == expected
        hits = llm.llm_engine.stats().prefix_cache_hits_total
        assert generate(llm) == expected, "with every prompt in the cache"
        assert llm.llm_engine.stats().prefix_cache_hits_total >= hits + 4 * 72


@pytest.mark.half
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption(checkpoint, mode):
    """What is recomputed is a prompt in chunks."""
    folder, expected, *_ = checkpoint
    enough = num_blocks_for_len(
        ModelConfig.from_folder(Path(folder)), OPTIONS["block_size"], "float32", OPTIONS["max_model_len"]
    )
    options = {"num_gpu_blocks_override": enough + 4, "preemption_mode": mode, "enable_prefix_caching": mode == "swap"}
    with LLM(folder, **OPTIONS, **options) as llm:
        assert generate(llm) == expected
        # Sequences that keep states alone do not grow: none takes another's blocks.
        assert (llm.llm_engine.stats().num_preemptions > 0) is llm.llm_engine.model_config.has_attention


def test_a_sleep_in_the_middle(checkpoint):
    """Of level 2: the weights are read once more, through all rules."""
    folder, expected, *_ = checkpoint
    with LLM(folder, **OPTIONS, enable_sleep_mode=True) as llm:
        engine, found = llm.llm_engine, {}
        for number, prompt in enumerate(make_prompts()):
            engine.add_request(str(number), prompt, GREEDY)
        for step in range(1000):
            if step == 9:
                engine.sleep(level=2, mode="keep")
                engine.wake_up()
            for output in engine.step():
                found[int(output.request_id)] = output.outputs[0].token_ids
            if not engine.has_unfinished_requests():
                break
        assert [found[number] for number in range(len(found))] == expected


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_fewer_bits_stay_near(checkpoint, options):
    """Mean error of the prompts' log-probabilities, which lie 2 and more apart."""
    folder, _, expected, bound = checkpoint
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with LLM(folder, **OPTIONS | options) as llm:
        outputs = llm.generate(make_prompts(), params, use_tqdm=False)
    found = [
        entry[token_id].logprob
        for output in outputs
        for entry, token_id in zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
    ]
    error = (torch.tensor(found) - expected).abs().mean()
    assert 1e-4 < error < bound, error
