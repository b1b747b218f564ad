"""Roster: the sequence groups that have not ended, and their sequences: birth, fork, end, beams."""

from collections.abc import Callable

from lullm.errors import InvalidRequestError
from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.beam import BeamSearch
from lullm.sched.queue import Order
from lullm.types.outputs import KV_CACHE_FULL, RequestMetrics
from lullm.types.pooling.token_rows import pooled_of
from lullm.types.request import GenerateRequest, num_encoder_slots, tiles_of
from lullm.types.sequence import Sequence, SequenceGroup, SequenceStatus
from lullm.types.step import DrawnToken

Member = tuple[SequenceGroup, Sequence]
"""A sequence and its group."""


class Roster:
    """The unfinished groups and sequences, without queues and budgets. Forks and frees blocks with their sequences."""

    def __init__(self, block_space: BlockSpaceManager, order: Order):
        self._block_space = block_space
        self._order = order
        self._groups: dict[str, SequenceGroup] = {}
        self._members: dict[int, Member] = {}
        # The sequence of an id; None if its group has ended, or the beam was dropped. Not a method: it is called for
        # every token.
        self.find_member: Callable[[int], Member | None] = self._members.get
        self._beams: dict[str, BeamSearch] = {}
        self._num_seqs_made = 0

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def request_ids(self) -> list[str]:
        """In order of arrival."""
        return list(self._groups)

    def find(self, request_id: str) -> SequenceGroup | None:
        """The group; None if it has ended or is unknown."""
        return self._groups.get(request_id)

    def member(self, seq_id: int) -> Member:
        """The sequence, which must exist."""
        return self._members[seq_id]

    def beam(self, group: SequenceGroup) -> BeamSearch | None:
        """The group's beam search, or None."""
        return self._beams.get(group.request_id)

    def add(self, request: GenerateRequest, max_num_seqs: int, max_model_len: int) -> SequenceGroup:
        """A new group with its first sequence.

        Raises:
            InvalidRequestError: its id is taken, it has too many sequences, or its prompt exceeds the whole pool.
        """
        params = request.params
        if params.num_sequences > max_num_seqs:
            name = "beam_width" if params.beam_width else "best_of" if params.best_of else "n"
            raise InvalidRequestError(
                f"{name}={params.num_sequences} is above the {max_num_seqs} sequences that may run at once "
                "(max_num_seqs)",
                name,
            )
        if request.request_id in self._groups:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use", "request_id")
        prompt_len = len(request.prompt_token_ids)
        group = SequenceGroup(request, [], RequestMetrics(request.arrival_time))
        num_slots = self._num_encoder_slots(request)
        group.pooled = pooled_of(request, num_slots)
        leader = self._make(group, [0] * num_slots + request.prompt_token_ids)
        required = self._block_space.num_required_blocks(group)
        if required > self._block_space.num_blocks:
            raise InvalidRequestError(
                f"the request needs {required} KV blocks for its prompt of {prompt_len} tokens, the cache has "
                f"{self._block_space.num_blocks}; shorten the prompt or give the cache more memory "
                "(kv_cache_memory_bytes)",
                "prompt",
            )
        self._groups[request.request_id] = group
        self._members[leader.seq_id] = group, leader
        if params.beam_width is not None:
            self._beams[request.request_id] = BeamSearch.of(request, max_model_len)
        self._order.register(group)
        return group

    def adopt(self, group: SequenceGroup, search: BeamSearch | None) -> None:
        """Take in a group with all of its sequences, which get ids here, behind all groups that are here."""
        for seq in group.seqs:
            seq.seq_id = self._num_seqs_made
            self._num_seqs_made += 1
            self._members[seq.seq_id] = group, seq
        self._groups[group.request_id] = group
        if search is not None:
            self._beams[group.request_id] = search
        self._order.register(group)

    def fork(self, group: SequenceGroup, parent: Sequence) -> Sequence:
        """Make a sequence with the parent's tokens, which shares all of its blocks."""
        child = self._make(group, parent.token_ids.copy())
        self._members[child.seq_id] = group, child
        child.status = parent.status
        child.num_computed_tokens = parent.num_computed_tokens
        child.cumulative_logprob = parent.cumulative_logprob
        self._block_space.fork(parent, child)
        return child

    def end(self, seq: Sequence, status: SequenceStatus, stop_reason: int | str | None = None) -> None:
        """End the sequence; its blocks are free at once."""
        self._members[seq.seq_id][0].end(seq, status, stop_reason)
        self._block_space.free(seq)

    def forget(self, group: SequenceGroup) -> None:
        """Remove a group whose sequences have all ended; its id may be used again."""
        del self._groups[group.request_id]
        self._beams.pop(group.request_id, None)
        for seq in group.seqs:
            del self._members[seq.seq_id]
        self._order.forget(group)

    def advance_beams(self, group: SequenceGroup, offers: list[DrawnToken]) -> None:
        """One step of a beam search: fork the beams that live on more than once, free those that do not.

        Once the search is done, the group's sequences have ended and its `hypotheses` are the answer.
        """
        search = self._beams[group.request_id]
        beams = [self._members[drawn.seq_id][1] for drawn in offers]
        extensions = search.advance(
            [
                (seq.token_ids[seq.prompt_len :], seq.cumulative_logprob, drawn.logprobs)
                for seq, drawn in zip(beams, offers, strict=True)
            ]
        )
        if search.is_done:
            group.hypotheses = search.hypotheses
            for seq in group.unfinished:
                self.end(seq, SequenceStatus.FINISHED_STOPPED)
            return
        heirs: list[Sequence] = []
        used: set[int] = set()
        for extension in extensions:
            parent = beams[extension.parent]
            heirs.append(self.fork(group, parent) if extension.parent in used else parent)
            used.add(extension.parent)
        # After the forks, which copy their parents without this step's token.
        for seq, extension in zip(heirs, extensions, strict=True):
            seq.token_ids.append(extension.token_id)
            seq.cumulative_logprob = extension.cumulative_logprob
        for index, seq in enumerate(beams):
            if index not in used:
                self._block_space.free(seq)
                del self._members[seq.seq_id]
        group.seqs, group.unfinished = heirs, heirs.copy()

    def end_outgrown(self, group: SequenceGroup) -> None:
        """End the whole group now, with the finish reason 'length', because the pool has no room for more."""
        search = self._beams.get(group.request_id)
        if search is not None:
            search.cut_short(
                KV_CACHE_FULL, [(s.token_ids[s.prompt_len :], s.cumulative_logprob) for s in group.unfinished]
            )
            group.hypotheses = search.hypotheses
        for seq in group.unfinished:
            self.end(seq, SequenceStatus.FINISHED_LENGTH_CAPPED, KV_CACHE_FULL)

    def _make(self, group: SequenceGroup, token_ids: list[int]) -> Sequence:
        request = group.request
        num_slots = self._num_encoder_slots(request)
        seq = Sequence(self._num_seqs_made, len(group.seqs), token_ids, num_slots + len(request.prompt_token_ids))
        seq.cache_salt, seq.tiles = request.cache_salt, tiles_of(request)
        seq.num_encoder_slots = num_slots
        seq.adapter_digest = request.adapter_digest
        self._num_seqs_made += 1
        group.add(seq)
        return seq

    def _num_encoder_slots(self, request: GenerateRequest) -> int:
        return num_encoder_slots(request, self._block_space.block_size)
