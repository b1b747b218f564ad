"""Whisper's rules for timestamps, against transformers' processor, over random outputs."""

import random
from types import SimpleNamespace

import pytest
import torch

from lullm.sampling.sampler import Sampler
from lullm.sampling.timestamps import apply_timestamps_, forbidden_ranges
from lullm.types.draw import Draw, DrawParams, LogitEdits
from lullm.types.guided.rules import TimestampRules, TokenRules
from lullm.types.packed import pack

VOCAB, END, FIRST = 40, 20, 26


def draw(token_ids, max_initial=None, suppressed=(), begin_suppressed=(), **params):
    rules = TokenRules(suppressed, begin_suppressed, TimestampRules(FIRST, END, max_initial))
    return Draw(1, 0, DrawParams(edits=LogitEdits(rules=rules), **params), len(token_ids), pack(token_ids))


def golden(logits, token_ids, max_initial, suppressed):
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    config = SimpleNamespace(
        no_timestamps_token_id=FIRST - 1,
        eos_token_id=END,
        bos_token_id=END,
        max_initial_timestamp_index=max_initial,
    )
    logits = logits.clone()
    logits[list(suppressed)] = -torch.inf
    return WhisperTimeStampLogitsProcessor(config, begin_index=2)(torch.tensor([[1, 2, *token_ids]]), logits[None])[0]


@pytest.mark.parametrize("max_initial", [None, 3])
def test_outputs_of_any_kind(max_initial):
    """Every output grows by what its rules allow, in batches beside draws without rules."""
    chance, noise = random.Random(1), torch.Generator().manual_seed(2)
    kinds = set()
    for _ in range(20):
        outputs = [[] for _ in range(4)]
        suppressed = tuple(chance.sample(range(END), 4))
        for _ in range(16):
            logits = torch.randn(5, VOCAB, generator=noise) * 2
            logits[:, FIRST:] += chance.choice([-3.0, 0.0])
            draws = [draw(ids, max_initial, suppressed) for ids in outputs] + [Draw(2, 0, DrawParams())]
            found = logits.clone()
            apply_timestamps_(found, draws)
            assert torch.equal(found[-1], logits[-1])
            for row, ids in zip(found, outputs, strict=False):
                expected = golden(logits[outputs.index(ids)], ids, max_initial, suppressed)
                assert torch.equal(row, expected)
                allowed = row.isfinite().nonzero().flatten().tolist()
                kinds.add((any(each < END for each in allowed), END in allowed, any(each >= FIRST for each in allowed)))
                ids.append(chance.choice(allowed))
    assert len(kinds) >= 4, "text, the end, times, and mixtures"


def test_the_first_token_of_an_output():
    logits = torch.zeros(1, VOCAB)
    apply_timestamps_(logits, [draw([], 2, begin_suppressed=(FIRST + 1,))])
    assert logits[0].isfinite().nonzero().flatten().tolist() == [FIRST, FIRST + 2]
    assert forbidden_ranges(TimestampRules(FIRST, END), []) == [(0, FIRST)]


def test_a_draw_that_would_have_no_token_left_keeps_all():
    logits = torch.zeros(1, VOCAB)
    apply_timestamps_(logits, [draw([], 0, suppressed=(FIRST,))])
    assert torch.equal(logits, torch.zeros(1, VOCAB))


def test_log_probabilities_are_of_what_is_left():
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(3))
    draws = [draw([FIRST, 3, FIRST + 4], temperature=temperature, num_logprobs=2, seed=5) for temperature in (0.0, 0.5)]
    expected = golden(logits[0], [FIRST, 3, FIRST + 4], None, ()).log_softmax(-1)
    [best, _] = Sampler(VOCAB).draw(logits[:1].repeat(2, 1), draws).drawn()
    assert best.token_id == int(expected.argmax())
    for token_id, logprob, _ in best.logprobs:
        assert logprob == pytest.approx(float(expected[token_id]), abs=1e-6)
