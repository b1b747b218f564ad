"""Random requests for a whole engine: prompts that share prefixes, and any combination of sampling parameters."""

import random
from typing import Any

from lullm import SamplingParams, StructuredOutputsParams
from lullm.errors import InvalidRequestError

VOCAB_SIZE = 320
NUM_PREFIXES = 4
FORMS: tuple[dict[str, Any], ...] = (
    {"regex": "[a-h ]{3,30}"}, {"choice": ["ab", "abc", "h"]},
    {"json": {"type": "array", "items": {"type": "integer"}}},
)  # fmt: skip


def random_prompt(rng: random.Random, longest: int) -> list[int]:
    """Half of them begin with one of a few prefixes, which are the same in every round."""
    prefix: list[int] = []
    if rng.random() < 0.5:
        prefix = random.Random(rng.randrange(NUM_PREFIXES)).choices(range(3, 300), k=longest // 2)
    own = rng.choices(range(3, 300), k=rng.randrange(1, longest - len(prefix)))
    return prefix[: rng.randrange(len(prefix) + 1)] + own


def random_params(rng: random.Random) -> SamplingParams:
    """Parameters that are valid for most engines."""
    if rng.random() < 0.1:
        return _beams(rng)
    fields: dict[str, Any] = {"temperature": rng.choice([0.0, 0.0, 0.7, 1.5]), "max_tokens": rng.choice([1, 3, 10, 40])}
    fields["ignore_eos"] = rng.random() < 0.7
    choices: list[tuple[float, dict[str, Any]]] = [
        (0.2, {"n": rng.randrange(2, 5)}),
        (0.1, {"seed": rng.randrange(1 << 40)}),
        (0.2, {"logprobs": rng.randrange(6)}),
        (0.1, {"prompt_logprobs": rng.randrange(4)}),
        (0.1, {"presence_penalty": rng.uniform(-2, 2), "frequency_penalty": rng.uniform(-2, 2)}),
        (0.1, {"repetition_penalty": rng.uniform(0.5, 2)}),
        (0.1, {"logit_bias": {rng.randrange(VOCAB_SIZE): rng.uniform(-100, 100) for _ in range(5)}}),
        (0.05, {"allowed_token_ids": rng.sample(range(VOCAB_SIZE), 7)}),
        (0.05, {"bad_words": ["a", "the", "q"]}),
        (0.1, {"stop": [rng.choice("abcdefgh") for _ in range(2)]}),
        (0.1, {"stop_token_ids": rng.sample(range(VOCAB_SIZE), 5), "min_tokens": fields["max_tokens"] // 2}),
        (0.1, {"top_k": rng.randrange(1, 50), "top_p": rng.uniform(0.1, 1.0)}),
        (0.05, {"min_p": rng.random()}),
        (0.1, {"structured_outputs": StructuredOutputsParams(**rng.choice(FORMS))}),
        (0.05, {"include_stop_str_in_output": True, "skip_special_tokens": False}),
    ]
    for chance, more in choices:
        if rng.random() < chance:
            fields |= more
    if "n" in fields and rng.random() < 0.3:
        fields["best_of"] = fields["n"] + 1
    try:
        return SamplingParams(**fields)
    except InvalidRequestError:  # `min_tokens` above `max_tokens`, a form and `allowed_token_ids`
        return SamplingParams(temperature=0.0, max_tokens=5)


def _beams(rng: random.Random) -> SamplingParams:
    width = rng.randrange(2, 4)
    early_stopping = rng.choice([True, False, "never"])
    return SamplingParams(
        beam_width=width, n=rng.randrange(1, width + 1), max_tokens=rng.choice([2, 8]), early_stopping=early_stopping
    )
