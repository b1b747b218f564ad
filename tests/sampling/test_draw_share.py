"""Workers that share a head draw for some rows each: tokens and log-probabilities are those of one for all."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from kit.worker.threads import thread_group

from lullm.collective.collective import Alone
from lullm.ops.draw_table import DrawTable
from lullm.ops.selection import REFERENCE_OPS, with_collective
from lullm.sampling.draw_share import DrawShare
from lullm.sampling.race import keys_of
from lullm.sampling.sampler import Sampler
from lullm.types.draw import Draw, DrawParams

V = 60
PARAMS = {
    "greedy": lambda row: DrawParams(temperature=0.0),
    "random": lambda row: DrawParams(temperature=0.7, top_p=0.9, seed=row),
    "ranked": lambda row: DrawParams(temperature=0.0, num_logprobs=2),
    "one ranked": lambda row: DrawParams(temperature=0.0, num_logprobs=3 if row == 0 else None),
    "various": lambda row: DrawParams(temperature=0.0, num_logprobs=(None, 0, 40)[row % 3]),
}


def draws_of(kind, num_draws):
    return [Draw(row, 0, PARAMS[kind](row), output_len=row) for row in range(num_draws)]


def drawn(group, logits, draws, size):
    """As a runner does it, of this worker's columns `[size, V / members]`."""
    share = DrawShare(group)
    own_logits = share.ops(with_collective(REFERENCE_OPS, group)).all_gather(logits)
    own = share.draws(draws, size)
    table = share.table(DrawTable.of(draws, keys_of(draws), V), size)
    sampled = Sampler(V).draw(own_logits[: len(own)].clone(), own, table, num_best=share.num_best(draws, size))
    return share.sampled(sampled, draws, size).drawn()


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize(("num_workers", "num_draws", "size"), [(2, 1, 1), (2, 7, 7), (3, 4, 4), (4, 3, 8), (3, 9, 9)])
def test_the_draws_of_one_worker(kind, num_workers, num_draws, size):
    """Also fewer draws than workers, and a batch that a device fills up."""
    logits = torch.randn(size, V, generator=torch.Generator().manual_seed(size))
    draws = draws_of(kind, num_draws)
    expected = drawn(Alone(), logits, draws, size)
    columns = logits.chunk(num_workers, dim=1)
    with ThreadPoolExecutor(num_workers) as pool:
        found = pool.map(lambda member: drawn(member, columns[member.rank], draws, size), thread_group(num_workers))
    for each in found:
        assert each == expected
