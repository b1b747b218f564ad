"""Router: which of several equal engines takes a request. Pure policy: it reads no clock and touches no engine.

A request goes to where the least work stands before its first token: prompts that were sent there and have not been
computed, the part of its own prompt that the engine's prefix cache does not hold, and sequences that share each step.
"""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

SEQUENCE_TOKENS = 64
"""What a running sequence counts, in prompt tokens. A known prefix that is longer outweighs one sequence more."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that was sent to an engine. `num_tokens`: of its prompt that are still to be computed there."""

    engine: int
    num_tokens: int
    num_sequences: int


class Replica:
    """What is known of one engine: the work it was given, and the blocks of the last prompts, as far as it holds them.

    Args:
        max_blocks: of its prefix cache.
    """

    def __init__(self, max_blocks: int):
        self.num_tokens = 0
        self.num_sequences = 0
        self.last_turn = -1
        self._max_blocks = max_blocks
        self._hashes: OrderedDict[bytes, None] = OrderedDict()  # the last used at the end

    def num_known(self, hashes: Sequence[bytes]) -> int:
        """How many first blocks of a prompt it has been sent before."""
        return sum(1 for _ in itertools.takewhile(self._hashes.__contains__, hashes))

    def learn(self, hashes: Sequence[bytes]) -> None:
        """It is going to hold these blocks; others are forgotten for them, a prompt's last ones first."""
        for each in reversed(hashes):
            self._hashes[each] = None
            self._hashes.move_to_end(each)
        while len(self._hashes) > self._max_blocks:
            self._hashes.popitem(last=False)

    def forget(self) -> None:
        """Its prefix cache is empty."""
        self._hashes.clear()


class Router:
    """Sends requests to engines, by their numbers.

    Args:
        max_blocks: that each engine's prefix cache holds. block_size: tokens in one.
    """

    def __init__(self, max_blocks: Sequence[int], block_size: int):
        self.replicas = [Replica(each) for each in max_blocks]
        self._block_size = block_size
        self._turns = itertools.count()

    def send(self, num_tokens: int, hashes: Sequence[bytes], num_sequences: int = 1) -> Ticket:
        """Choose an engine for a request, which counts until `end`.

        Args:
            num_tokens: of the prompt. hashes: of its full blocks, or of the first ones.
        """
        wanted = [self._num_uncached(replica, num_tokens, hashes) for replica in self.replicas]

        def work(number: int) -> tuple[int, int]:
            replica = self.replicas[number]
            before = replica.num_tokens + SEQUENCE_TOKENS * replica.num_sequences
            return before + wanted[number], replica.last_turn

        chosen = min(range(len(self.replicas)), key=work)
        ticket = Ticket(chosen, wanted[chosen], num_sequences)
        replica = self.replicas[chosen]
        replica.num_tokens += ticket.num_tokens
        replica.num_sequences += num_sequences
        replica.last_turn = next(self._turns)
        replica.learn(hashes)
        return ticket

    def begin(self, ticket: Ticket) -> None:
        """The request has its first output: its prompt is computed. Idempotent."""
        self.replicas[ticket.engine].num_tokens -= ticket.num_tokens
        ticket.num_tokens = 0

    def end(self, ticket: Ticket) -> None:
        """The request has ended, however."""
        self.begin(ticket)
        self.replicas[ticket.engine].num_sequences -= ticket.num_sequences

    def _num_uncached(self, replica: Replica, num_tokens: int, hashes: Sequence[bytes]) -> int:
        return max(num_tokens - replica.num_known(hashes) * self._block_size, 1)
