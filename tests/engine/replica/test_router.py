"""Where requests go: to known prefixes, to the least work, in turn where all is equal."""

import random

from lullm.engine.replica.router import SEQUENCE_TOKENS, Router

BLOCK = 16


def blocks(name, count):
    return [f"{name}{number}".encode() for number in range(count)]


def router(num_engines=2, max_blocks=100):
    return Router([max_blocks] * num_engines, BLOCK)


def test_equal_engines_take_turns():
    found = router(3)
    sent = []
    for number in range(9):
        ticket = found.send(20, blocks(f"p{number}-", 1))
        found.end(ticket)
        sent.append(ticket.engine)
    assert sent == [0, 1, 2] * 3


def test_requests_that_run_are_spread():
    found = router(4)
    tickets = [found.send(100, blocks(f"p{number}-", 6)) for number in range(16)]
    assert [ticket.engine for ticket in tickets] == [0, 1, 2, 3] * 4


def test_a_known_prefix_is_followed():
    found = router()
    first = found.send(200, blocks("a", 12))
    found.end(first)
    other = found.send(200, blocks("b", 12))
    found.end(other)
    assert other.engine != first.engine
    for turn, (name, engine) in enumerate((("a", first.engine), ("b", other.engine), ("a", first.engine))):
        ticket = found.send(230, blocks(name, 12) + blocks(f"new{turn}-", 2))
        assert ticket.engine == engine and ticket.num_tokens == 230 - 12 * BLOCK
        found.end(ticket)


def test_only_a_prefix_counts():
    found = router()
    ticket = found.send(200, blocks("a", 12))
    found.end(ticket)
    assert found.replicas[ticket.engine].num_known(blocks("a", 12)) == 12
    assert found.replicas[ticket.engine].num_known([b"other", *blocks("a", 12)]) == 0


def test_a_prefix_does_not_hold_against_a_long_queue():
    found = router()
    first = found.send(200, blocks("a", 12))
    found.begin(first)
    home = first.engine
    engines = [found.send(200, blocks("a", 12)).engine for _ in range(2 * 12 * BLOCK // SEQUENCE_TOKENS)]
    assert engines[0] == home and 1 - home in engines, "the other engine computes the prefix, too"


def test_work_counts_until_it_is_done():
    found = router()
    long = found.send(1000, blocks("long", 62))
    assert [found.send(50, blocks(f"s{number}", 3)).engine for number in range(3)] == [1 - long.engine] * 3
    found.begin(long)
    found.begin(long)
    assert found.replicas[long.engine].num_tokens == 0, "its prompt is computed"
    assert found.send(50, blocks("next", 3)).engine == long.engine
    found.end(long)
    assert found.replicas[long.engine].num_sequences == 1


def test_many_sequences_weigh_more():
    found = router()
    many = found.send(16, blocks("a", 1), num_sequences=8)
    assert {found.send(16, blocks(f"b{number}", 1)).engine for number in range(5)} == {1 - many.engine}


def test_what_an_engine_cannot_hold_is_forgotten_and_a_prompts_end_first():
    found = router(1, max_blocks=10)
    replica = found.replicas[0]
    found.send(160, blocks("a", 10))
    found.send(48, blocks("b", 3))
    assert replica.num_known(blocks("b", 3)) == 3 and replica.num_known(blocks("a", 10)) == 7
    replica.forget()
    assert replica.num_known(blocks("b", 3)) == 0
    assert Router([0], BLOCK).send(48, []).engine == 0, "without a prefix cache"


def test_nothing_is_left_of_requests_that_have_ended():
    rng, found, open_tickets = random.Random(3), router(3, 50), []
    for number in range(2000):
        if open_tickets and rng.random() < 0.5:
            ticket = open_tickets.pop(rng.randrange(len(open_tickets)))
            if rng.random() < 0.5:
                found.begin(ticket)
            found.end(ticket)
        else:
            length = rng.randrange(1, 500)
            hashes = blocks(f"p{rng.randrange(20)}-", length // BLOCK)
            open_tickets.append(found.send(length, hashes, rng.randrange(1, 4)))
        loads = [each.num_sequences for each in found.replicas]
        assert number < 100 or max(loads) - min(loads) < 40
    for ticket in open_tickets:
        found.end(ticket)
    assert all(each.num_tokens == each.num_sequences == 0 for each in found.replicas)
