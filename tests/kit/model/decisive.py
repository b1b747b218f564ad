"""Greedy answers that a test may compare token by token: nowhere two tokens are so close that rounding decides."""

from pathlib import Path

from lullm import LLM, SamplingParams
from lullm.types.outputs import CompletionOutput

CANDIDATES = (
    "hello world",
    "the quick brown fox",
    "a b c",
    "jumps over",
    "12 34 !?",
    "over the lazy dog",
    "d e f g h",
    "hello",
    "quick",
    "m n o p 12",
    "world fox",
    "the dog jumps",
)
MARGIN = 1e-3
"""Between the two best log-probabilities. Batches of other shapes move them by about 1e-6 in float32."""


def decisive_answers(folder: str, num: int, max_tokens: int, **options: object) -> dict[str, CompletionOutput]:
    """`num` prompts and their greedy answers of `max_tokens` tokens, by an engine that never sleeps."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=2)
    with LLM(folder, **options) as llm:
        outputs = llm.generate(CANDIDATES, params, use_tqdm=False)
    answers = {prompt: output.outputs[0] for prompt, output in zip(CANDIDATES, outputs, strict=True)}
    decisive = {prompt: answer for prompt, answer in answers.items() if _margin(answer) > MARGIN}
    assert len(decisive) >= num, "the random model is too undecided"
    return dict(list(decisive.items())[:num])


def decisive_tokens(folder: str | Path, num: int, max_tokens: int, **options: object) -> dict[str, list[int]]:
    """The same, as token ids."""
    found = decisive_answers(str(folder), num, max_tokens, **options)
    return {prompt: answer.token_ids for prompt, answer in found.items()}


def _margin(answer: CompletionOutput) -> float:
    best = [sorted((entry.logprob for entry in position.values()), reverse=True) for position in answer.logprobs or []]
    return min(first - second for first, second, *_ in best)
