"""Weights that a caller's iterable gives, while nothing else may wait for the engine."""

import asyncio
import threading

import pytest
import torch

from lullm.errors import InvalidRequestError
from lullm.executor.feeding import Feeding, checked_weight

ONE = ("a", torch.ones(1))


def test_what_iterates_may_not_call_its_engine_but_another():
    feeding, other = Feeding(), Feeding()

    def weights():
        other.check()
        yield ONE
        with pytest.raises(InvalidRequestError, match="cannot call it; make them before"):
            feeding.check()
        assert list(other.items([ONE])) == [ONE]
        yield ONE

    for _ in feeding.items(weights()):
        feeding.check()
    feeding.check()


def test_nested_updates_know_both_engines():
    feeding, other = Feeding(), Feeding()

    def inner():
        for each in (feeding, other):
            with pytest.raises(InvalidRequestError):
                each.check()
        yield ONE

    def outer():
        yield from other.items(inner())

    assert [name for name, _ in feeding.items(outer())] == ["a"]


def test_a_call_by_way_of_an_event_loop_is_known_too():
    feeding, loop = Feeding(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def call():
        feeding.check()

    def weights():
        with pytest.raises(InvalidRequestError):
            asyncio.run_coroutine_threadsafe(call(), loop).result()
        yield ONE

    assert len(list(feeding.items(weights()))) == 1
    asyncio.run_coroutine_threadsafe(call(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_an_error_of_the_iterable_leaves_the_engine_free():
    feeding = Feeding()

    def weights():
        yield ONE
        raise KeyError("the trainer stumbled")

    with pytest.raises(KeyError, match="stumbled"):
        list(feeding.items(weights()))
    feeding.check()


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (5, "pairs of a name and a tensor: int is none"),
        (b"", "pairs of a name and a tensor: bytes is none"),
        (None, "pairs of a name and a tensor: NoneType is none"),
        ((3, torch.ones(1)), "int and Tensor are not"),
        (("a", [1.0]), "str and list are not"),
        (("a", torch.ones(1).numpy()), "str and ndarray are not"),
        (("a", torch.empty(2, device="meta")), "a is on the meta device and has no values"),
        (("a", torch.ones(2).to_sparse()), "a is torch.sparse_coo; give a.to_dense()"),
    ],
)
def test_what_is_no_weight(item, text):
    with pytest.raises(InvalidRequestError, match=text) as info:
        checked_weight(item)
    assert info.value.param == "weights"
    assert checked_weight(("a", torch.empty(0)))[1].numel() == 0
