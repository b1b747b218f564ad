"""The collective among threads that other tests rely on, and an engine whose workers live in threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from kit.engine.prompts import random_prompts
from kit.worker.threads import thread_group, thread_seats, use_threads

from lullm import LLM, SamplingParams
from lullm.errors import WorkerLostError


def together(group, function):
    """`function(member)` on all members at once; the results by rank."""
    with ThreadPoolExecutor(len(group)) as pool:
        return list(pool.map(function, group))


def test_sums_and_columns_of_three():
    xs = [torch.randn(2, 5) for _ in range(3)]
    copies = [x.clone() for x in xs]

    def work(member):
        gathered = member.all_gather(xs[member.rank])
        member.all_reduce_(xs[member.rank])
        return gathered

    gathered = together(thread_group(3), work)
    total = copies[0] + copies[1] + copies[2]
    assert all(torch.equal(x, total) for x in xs)
    assert all(torch.equal(x, torch.cat(copies, dim=1)) for x in gathered)


def test_a_sum_of_bfloat16_is_rounded_once():
    parts = [1.0, 2.0**-8, 2.0**-8]
    xs = [torch.tensor([part], dtype=torch.bfloat16) for part in parts]
    together(thread_group(3), lambda member: member.all_reduce_(xs[member.rank]))
    assert [float(x) for x in xs] == [1.0 + 2.0**-7] * 3


def test_letters_arrive_in_order_and_to_the_right_member():
    xs = [torch.zeros(2), torch.zeros(2), torch.zeros(2)]

    def work(member):
        if member.rank == 0:
            for value in (1.0, 2.0):
                member.send(torch.full((2,), value), 2)
            member.send(torch.full((2,), 5.0), 1)
        elif member.rank == 1:
            member.receive_(xs[1], 0)
        else:
            member.receive_(xs[2], 0)
            member.receive_(xs[2], 0)

    together(thread_group(3), work)
    assert [x.tolist() for x in xs] == [[0.0, 0.0], [5.0, 5.0], [2.0, 2.0]]


def test_a_member_that_leaves_is_noticed():
    first, second = thread_group(2)

    def work(member):
        if member is second:
            member.close()
            return
        with pytest.raises(WorkerLostError):
            member.all_reduce_(torch.ones(1))
        with pytest.raises(WorkerLostError):
            member.receive_(torch.ones(1), 1)

    together((first, second), work)


def test_seats_of_a_grid():
    seats = thread_seats(2, 3)
    assert [(seat.tensor.rank, seat.pipeline.rank) for seat in seats] == [(t, p) for p in range(3) for t in range(2)]
    assert all((seat.tensor.size, seat.pipeline.size) == (2, 3) for seat in seats)


@pytest.fixture
def llm(qwen3_folder, monkeypatch):
    use_threads(monkeypatch)
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=128, tensor_parallel_size=2) as llm:
        yield llm


def test_the_tokens_of_one_worker(llm, qwen3_folder):
    prompts = random_prompts(4, 40)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=128) as alone:
        expected = [output.outputs[0].token_ids for output in alone.generate(prompts, params, use_tqdm=False)]
    found = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    assert found == expected


def test_calls_reach_every_thread(llm):
    ranks = llm.collective_rpc(lambda worker, by: by * worker.setup.seat.placement.rank, args=(3,))
    assert ranks == [0, 3] and llm.collective_rpc("weights_version") == [0, 0]
