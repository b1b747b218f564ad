"""What tests of equality compare: tokens and log-probabilities of transformers, and those of an engine."""

import pytest
import torch

from lullm import LLM, RequestOutput, SamplingParams


def greedy_tokens(model, prompt: list[int], max_tokens: int) -> list[int]:
    """What a model of transformers goes on with, whatever token would end it."""
    with torch.inference_mode():
        whole = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_tokens, do_sample=False, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return whole[0, len(prompt) :].tolist()


def tokens_of(
    llm: LLM, prompts: list[list[int]], params: SamplingParams | list[SamplingParams]
) -> list[list[list[int]]]:
    """Of each prompt and each of its completions."""
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def assert_logprobs_equal(model, output: RequestOutput) -> None:
    """Of the prompt and of what was drawn, all that an engine has given, within 1e-4 of transformers'."""
    [completion] = output.outputs
    with torch.inference_mode():
        truth = model(torch.tensor([output.prompt_token_ids + completion.token_ids])).logits[0].log_softmax(-1)
    found = output.prompt_logprobs[1:] + completion.logprobs
    assert len(found) == len(truth) - 1
    for position, entries in enumerate(found):
        for token_id, logprob in entries.items():
            assert logprob.logprob == pytest.approx(truth[position, token_id].item(), abs=1e-4)
