"""Every causal language model of the installed transformers without a family here: its tokens, or a refusal.

`python -m kit.model.every` (in tests/) writes the record anew, from which docs/models.md has its table.
"""

import pytest
from kit.model.every import RUNS, architectures, recorded, verdict


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted(recorded()))
def test_its_tokens_or_a_refusal(tmp_path, architecture):
    assert verdict(tmp_path, architecture) == recorded()[architecture]


def test_the_record_names_all_and_leaves_nothing_unexplained():
    assert set(recorded()) == set(architectures())
    assert sum(word == RUNS for word in recorded().values()) >= 3
    assert not [word for word in recorded().values() if "unexplained" in word]
