"""Whole models against transformers: config, loading, every layer and the paged cache at once, in float32."""

import pytest
import torch
from kit.model.families import CASES, ROPE
from kit.model.golden import (
    PROMPT_LEN,
    PagedRun,
    assert_close,
    golden_logits,
    load_model,
    prompt,
    save_model,
)
from safetensors.torch import load_file, save_file

from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS
from lullm.weights.loader import load_weights

VARIANTS = {
    f"{family} {name}": (family, options) for family, cases in CASES.items() for name, options in cases.variants.items()
}
GEMMA = CASES["Gemma3"].variants["plain"]


@pytest.mark.parametrize(("family", "options"), VARIANTS.values(), ids=VARIANTS.keys())
def test_logits(tmp_path, family, options):
    theirs = save_model(tmp_path, family, options)
    model = load_model(tmp_path)
    first, second, third = prompt(1), prompt(2), prompt(3, 20)
    expected = golden_logits(theirs, first)
    assert expected.std() > 0.3  # otherwise 1e-4 would prove little

    for ops in (TORCH_CPU_OPS, REFERENCE_OPS):
        assert_close(PagedRun(model, ops, 1).step([(0, first)]), expected)

    # Chunks, decodes and fresh prompts mixed in the same steps.
    run = PagedRun(model, TORCH_CPU_OPS, 3)
    parts = {0: [], 1: [], 2: []}
    steps = [
        {0: 50},
        {0: 7, 1: 30},
        {0: 1, 1: 1, 2: 20},
        {0: 31, 1: 40},
        {1: 2, 0: 1},
        {1: 17},
    ]
    tokens = {0: first, 1: second, 2: third}
    for step in steps:
        work = [(seq, tokens[seq][run.computed[seq] :][:count]) for seq, count in step.items()]
        logits = run.step(work).split([len(ids) for _, ids in work])
        for (seq, _), part in zip(work, logits, strict=True):
            parts[seq].append(part)
    assert run.computed == [90, 90, 20]
    for seq, token_ids in tokens.items():
        assert_close(torch.cat(parts[seq]), golden_logits(theirs, token_ids))


def test_greedy_decoding_equals_generate(tmp_path):
    theirs = save_model(tmp_path, "Qwen3", {"tie_word_embeddings": True}, seed=5)
    model = load_model(tmp_path)
    prompts = [prompt(seed, length) for seed, length in ((1, 5), (2, 30), (3, 17), (4, 1))]
    run = PagedRun(model, TORCH_CPU_OPS, 4)
    logits = run.step(list(enumerate(prompts)))
    ends = torch.tensor([len(p) for p in prompts]).cumsum(0) - 1
    outputs = [[int(token_id)] for token_id in logits[ends].argmax(-1)]
    for _ in range(23):
        logits = run.step([(seq, output[-1:]) for seq, output in enumerate(outputs)])
        for output, token_id in zip(outputs, logits.argmax(-1), strict=True):
            output.append(int(token_id))
    for token_ids, output in zip(prompts, outputs, strict=True):
        generated = theirs.generate(
            torch.tensor([token_ids]), attention_mask=torch.ones(1, len(token_ids)), do_sample=False,
            max_new_tokens=24, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert output == generated[0, len(token_ids) :].tolist()


def test_two_hundred_tokens_in_a_window_of_thirty_two(tmp_path):
    theirs = save_model(tmp_path, "Mistral", {"sliding_window": 32, "max_position_embeddings": 256})
    model = load_model(tmp_path, max_model_len=256)
    token_ids = prompt(1, 200)
    expected = golden_logits(theirs, token_ids)
    unlimited = save_model(tmp_path / "unlimited", "Mistral", {"sliding_window": None, "max_position_embeddings": 256})
    assert (expected - golden_logits(unlimited, token_ids)).abs().max() > 0.1
    for chunk in (1, 7, 64, 200):
        run = PagedRun(model, TORCH_CPU_OPS, 1, max_len=200)
        parts = [run.step([(0, token_ids[first : first + chunk])]) for first in range(0, 200, chunk)]
        assert_close(torch.cat(parts), expected)


def test_bfloat16_is_as_near_as_transformers(tmp_path):
    theirs = save_model(tmp_path, "Qwen3", {})
    model = load_model(tmp_path, torch.bfloat16)
    truth = golden_logits(theirs, prompt(1))
    ours = PagedRun(model, TORCH_CPU_OPS, 1, dtype=torch.bfloat16).step([(0, prompt(1))])
    their_error = (golden_logits(theirs.bfloat16(), prompt(1)).float() - truth).abs().mean()
    assert ours.dtype == torch.float32
    assert (ours - truth).abs().mean() < 1.2 * their_error


def test_dynamic_rope_beyond_the_trained_length(tmp_path):
    """All positions are rotated as transformers rotates them in a sequence of `max_model_len` tokens."""
    theirs = save_model(tmp_path, "Llama", {"rope_parameters": ROPE["dynamic"], "max_position_embeddings": 32})
    model = load_model(tmp_path, max_model_len=PROMPT_LEN)
    run = PagedRun(model, TORCH_CPU_OPS, 1)
    token_ids = prompt(1)
    logits = torch.cat([run.step([(0, token_ids[:40])]), run.step([(0, token_ids[40:])])])
    assert_close(logits, golden_logits(theirs, token_ids))


def test_layers_that_draft_are_not_loaded(tmp_path):
    """GLM-4.5's files have a layer more than `num_hidden_layers` says."""
    theirs = save_model(tmp_path, "Glm4Moe", CASES["Glm4Moe"].variants["plain"])
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    drafts = {name.replace("layers.2.", "layers.3."): tensors[name].clone() for name in tensors if "layers.2." in name}
    save_file(tensors | drafts | {"model.layers.3.eh_proj.weight": torch.zeros(48, 96)}, file)
    run = PagedRun(load_model(tmp_path), TORCH_CPU_OPS, 1)
    assert_close(run.step([(0, prompt(1))]), golden_logits(theirs, prompt(1)))


def test_a_router_without_its_correction(tmp_path):
    """A.X K1's released files have none: it is zero, whatever the memory held before."""
    theirs = save_model(tmp_path, "AXK1", CASES["AXK1"].variants["plain"])
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    corrections = [name for name in tensors if name.endswith("e_score_correction_bias")]
    for name in corrections:
        del tensors[name]
        theirs.get_buffer(name).zero_()
    assert corrections
    save_file(tensors, file)
    model = load_model(tmp_path)
    for name, parameter in model.named_parameters():
        parameter.fill_(9.0 if name in corrections else 0.0)
    load_weights(model, tmp_path, TORCH_CPU_OPS)
    assert_close(PagedRun(model, TORCH_CPU_OPS, 1).step([(0, prompt(1))]), golden_logits(theirs, prompt(1)))


@pytest.mark.parametrize("family", ["GPT2", "GptOss", "Phi3", "Qwen3Moe"])
def test_shards(tmp_path, family):
    """Through every rule: transposed matrices, heads in another order, experts by themselves and stacked."""
    cases = CASES[family]
    theirs = save_model(tmp_path, family, cases.engine or cases.variants["plain"])
    theirs.save_pretrained(tmp_path, max_shard_size="30KB")
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    run = PagedRun(load_model(tmp_path), TORCH_CPU_OPS, 1)
    assert_close(run.step([(0, prompt(1))]), golden_logits(theirs, prompt(1)))
