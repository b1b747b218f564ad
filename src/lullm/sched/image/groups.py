"""Takes the images of a scheduler's groups, finds room for them in another scheduler, and brings them back there."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from lullm.errors import HibernationError
from lullm.kv.block_table import NULL_BLOCK
from lullm.kv.image.image import BlockSpaceImage, PoolImage, TableImage
from lullm.sched.adapter.queue import NO_ADAPTER
from lullm.sched.beam import BeamSearch
from lullm.sched.image.group import BeamImage, GroupImage, take_pooled, take_sequence
from lullm.sched.scheduler import Scheduler
from lullm.types.sequence import SequenceGroup, SequenceStatus


@dataclass(frozen=True, slots=True)
class Returning:
    """A group that comes back: itself, its beam search, and its image."""

    group: SequenceGroup
    search: BeamSearch | None
    image: GroupImage


@dataclass(frozen=True, slots=True)
class FoundRoom:
    """Which groups keep their blocks, by their number, and which blocks come back, by their old numbers."""

    kept: frozenset[int]
    device: frozenset[int]
    host: frozenset[int]

    @property
    def num_blocks(self) -> int:
        """How many blocks come back."""
        return len(self.device) + len(self.host)


def take_groups(scheduler: Scheduler) -> list[tuple[SequenceGroup, GroupImage]]:
    """All unfinished groups, in the order of their arrival. No step is in flight."""
    roster, images = scheduler.roster, scheduler.block_space.images
    found = []
    for request_id in roster.request_ids:
        group = roster.find(request_id)
        assert group is not None, "it has not ended"
        search = roster.beam(group)
        is_waiting = group in scheduler.waiting
        image = GroupImage(
            "waiting" if is_waiting else "swapped" if group in scheduler.swapped else "running",
            [take_sequence(seq, [] if seq.is_finished else images.tables_of(seq)) for seq in group.seqs],
            group.metrics.times,
            group.num_cached_tokens,
            group.prompt_logprobs.to_bytes(),
            take_pooled(group.pooled),
            None if search is None else BeamImage(search.hypotheses, search.can_improve),
        )
        found.append((group, image))
    return found


def find_room(scheduler: Scheduler, returning: Seq[Returning], blocks: BlockSpaceImage) -> FoundRoom:
    """Decide which groups keep their blocks: in order, while blocks, sequences and places of adapters last. The others
    are computed again. Once a running group finds no room, no later one runs.

    Cached blocks get the room that is left, the most recently used first. `scheduler`: has no group.

    Raises HibernationError: a group can never run here, or the images contradict each other.
    """
    space, num_left = scheduler.block_space, scheduler.limits.max_num_seqs
    known = _known_blocks(blocks.device), _known_blocks(blocks.host)
    kept: set[int] = set()
    device, host = _Pool(blocks.device, space.num_blocks), _Pool(blocks.host, space.num_host_blocks)
    adapters: set[int] = set()
    is_full = False  # none runs behind one that waits for blocks: it could take them for long (`Scheduler`)
    for number in scheduler.order.sorted([each.group.request for each in returning]):
        each = returning[number]
        group, is_running = each.group, each.image.place == "running"
        if group.num_seqs > scheduler.limits.max_num_seqs:
            raise HibernationError(
                f"request {group.request_id!r} has {group.num_seqs} sequences, more than max_num_seqs="
                f"{scheduler.limits.max_num_seqs} here; raise it"
            )
        if each.image.place != "waiting":
            _check_tables(scheduler, each, known)
            used = adapters | {group.adapter} - {NO_ADAPTER}
            has_place = len(used) <= scheduler.waiting.num_places
            fits = has_place and (not is_running or not is_full and group.num_seqs <= num_left)
            if fits and (device if is_running else host).take(_block_ids(each.image.tables)):
                kept.add(number)
                adapters = used
                num_left -= group.num_seqs if is_running else 0
                continue
            is_full |= is_running and has_place
        required = space.num_required_blocks(group)
        if required > space.num_blocks < blocks.num_blocks:
            raise HibernationError(
                f"request {group.request_id!r} needs {required} KV blocks, and this engine has {space.num_blocks}, "
                f"fewer than the {blocks.num_blocks} there; give the cache more memory (kv_cache_memory_bytes)"
            )
    if space.enable_prefix_caching:
        device.fill()
        host.fill()
    return FoundRoom(frozenset(kept), frozenset(device.taken), frozenset(host.taken))


def bring_back(scheduler: Scheduler, returning: Seq[Returning], kept: Iterable[int], blocks: BlockSpaceImage) -> None:
    """Put the groups into the scheduler. The places of `kept` blocks have their contents (`BlockImages.begin`)."""
    images = scheduler.block_space.images
    for number, each in enumerate(returning):
        group = each.group
        scheduler.roster.adopt(group, each.search)
        if number not in kept:
            scheduler.waiting.push(group)
            for seq in group.unfinished:
                seq.num_computed_tokens = 0
                seq.status = SequenceStatus.WAITING
            group.forget_partial_prompt()
            continue
        for seq, of_seq in zip(group.seqs, each.image.seqs, strict=True):
            if not seq.is_finished:
                images.adopt(seq, of_seq.tables)
        scheduler.waiting.seat(group)
        if each.image.place == "running":
            scheduler.running.append(group)
        else:
            scheduler.swapped.push(group)
    scheduler.running.sort(key=scheduler.order.key)
    images.finish(blocks)


class _Pool:
    """Hands out the room of one pool. `taken`: the old numbers of blocks that have some."""

    def __init__(self, image: PoolImage, num_blocks: int):
        self._image = image
        self._num_blocks = num_blocks
        self.taken: set[int] = set()

    def take(self, block_ids: set[int]) -> bool:
        """Room for all of these blocks, or for none."""
        wanted = self.taken | block_ids
        if len(wanted) > self._num_blocks:
            return False
        self.taken = wanted
        return True

    def fill(self) -> None:
        """The rest of the room goes to blocks that can be found."""
        found = [b for b, content in zip(self._image.block_ids, self._image.contents, strict=True) if content]
        others = [block_id for block_id in found if block_id not in self.taken]
        num_left = self._num_blocks - len(self.taken)
        self.taken.update(others[max(len(others) - num_left, 0) :])


def _block_ids(tables: Iterable[TableImage]) -> set[int]:
    return {block_id for table in tables for block_id in table.block_ids if block_id != NULL_BLOCK}


def _known_blocks(image: PoolImage) -> frozenset[int]:
    """The blocks of a pool. Raises HibernationError: the image contradicts itself."""
    known = frozenset(image.block_ids)
    if len(known) != len(image.block_ids) or len(image.contents) != len(known) or min(known, default=0) < 0:
        raise HibernationError("the blocks of the hibernation contradict each other")
    return known


def _check_tables(scheduler: Scheduler, each: Returning, known: tuple[frozenset[int], frozenset[int]]) -> None:
    """Check that sequences that hold blocks have those that they say. Raises HibernationError."""
    space, is_on_host = scheduler.block_space, each.image.place == "swapped"
    for seq, image in zip(each.group.seqs, each.image.seqs, strict=True):
        if seq.is_finished:
            continue
        is_right = len(image.tables) == len(space.groups)
        for cache, table in zip(space.groups, image.tables, strict=False):
            num_slots = len(table.block_ids) * space.block_size
            is_long = num_slots >= seq.num_computed_tokens
            if not cache.keeps_tokens:
                is_long = len(table.block_ids) == cache.num_state_blocks
            is_right = is_right and is_long and table.is_on_host == is_on_host
            is_right = is_right and known[is_on_host].issuperset(set(table.block_ids) - {NULL_BLOCK})
            is_right = is_right and 0 <= table.num_promoted <= len(seq) // space.block_size
        if not is_right:
            raise HibernationError(f"request {each.group.request_id!r} lacks blocks that it says to have")
