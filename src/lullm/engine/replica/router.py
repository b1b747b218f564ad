"""Router: chooses one of several equal engines for a request. Pure policy: it reads no clock and touches no engine.

It chooses the engine with the least work before the request's first token. That work is: prompts sent there that are
not computed yet, the part of this prompt that the engine's prefix cache lacks, and sequences that share each step.
"""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

SEQUENCE_TOKENS = 64
"""The weight of a running sequence, in prompt tokens. A longer cached prefix outweighs one more sequence."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that was sent to an engine. `num_tokens`: tokens of its prompt that the engine must compute."""

    engine: int
    num_tokens: int
    num_sequences: int


class Replica:
    """One engine's work, and the hashes of the prompt blocks that its prefix cache should hold.

    Args:
        max_blocks: size of its prefix cache.
    """

    def __init__(self, max_blocks: int):
        self.num_tokens = 0
        self.num_sequences = 0
        self.last_turn = -1
        self._max_blocks = max_blocks
        self._hashes: OrderedDict[bytes, None] = OrderedDict()  # least recently used first

    def num_known(self, hashes: Sequence[bytes]) -> int:
        """The number of a prompt's first blocks that it has been sent before."""
        return sum(1 for _ in itertools.takewhile(self._hashes.__contains__, hashes))

    def learn(self, hashes: Sequence[bytes]) -> None:
        """Add these blocks, and drop the least recently used ones; a prompt's last blocks go first."""
        for each in reversed(hashes):
            self._hashes[each] = None
            self._hashes.move_to_end(each)
        while len(self._hashes) > self._max_blocks:
            self._hashes.popitem(last=False)

    def forget(self) -> None:
        """Its prefix cache was cleared."""
        self._hashes.clear()


class Router:
    """Chooses engines for requests, by number.

    Args:
        max_blocks: size of each engine's prefix cache.
        block_size: tokens in a block.
    """

    def __init__(self, max_blocks: Sequence[int], block_size: int):
        self.replicas = [Replica(each) for each in max_blocks]
        self._block_size = block_size
        self._turns = itertools.count()

    def send(self, num_tokens: int, hashes: Sequence[bytes], num_sequences: int = 1) -> Ticket:
        """Choose an engine for a request, whose work counts until `end`.

        Args:
            num_tokens: of the prompt.
            hashes: of its full blocks, or of the first ones.
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
        """The request has its first output, so its prompt is computed. Idempotent."""
        self.replicas[ticket.engine].num_tokens -= ticket.num_tokens
        ticket.num_tokens = 0

    def end(self, ticket: Ticket) -> None:
        """The request has ended, for any reason."""
        self.begin(ticket)
        self.replicas[ticket.engine].num_sequences -= ticket.num_sequences

    def _num_uncached(self, replica: Replica, num_tokens: int, hashes: Sequence[bytes]) -> int:
        return max(num_tokens - replica.num_known(hashes) * self._block_size, 1)
