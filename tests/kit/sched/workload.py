"""Random requests, aborts and cache resets over a `Simulation`: every sequence ends once, every block comes back."""

import random
from collections import Counter
from dataclasses import dataclass, field

from kit.sched.simulation import Simulation, State

from lullm.errors import InvalidRequestError
from lullm.sched.scheduler import SequenceUpdate
from lullm.types.pooling.rows import PooledRows
from lullm.types.pooling.token_rows import Pooled
from lullm.types.request import GenerateRequest
from lullm.types.sequence import SequenceGroup
from lullm.types.vision.tile import RowGeometry, Tile, TilePlace

TILE = Tile.of(1, 1, b"rgb")


@dataclass
class Workload:
    """What one run has done; `run` checks every law that holds whatever comes."""

    sim: Simulation
    rng: random.Random
    pooling_share: float = 0.0  # of the requests
    picture_rows: int = 0  # of pictures in prompts, whose rows see each other; 0: there are none
    accepted: list[SequenceGroup] = field(default_factory=list)
    num_refused: int = 0
    num_aborted: int = 0
    ends: Counter[int] = field(default_factory=Counter)

    def run(self, num_rounds: int) -> None:
        """So many rounds: perhaps a new request, an abort, a reset; and a step. Then to the end of what is left.

        Once all memory is lost.
        """
        rng = self.rng
        live: list[str] = []
        for number in range(num_rounds):
            if rng.random() < 0.25 and len(live) < 30 and self._add(str(number)):
                live.append(str(number))
            if live and rng.random() < 0.03:
                self._abort(live.pop(rng.randrange(len(live))))
            if rng.random() < 0.001:
                self.sim.block_space.reset_prefix_cache()
            if number == num_rounds // 2:
                self.sim.lose_memory()
            self._take(self.sim.step())
            self.sim.plans.clear()
            unfinished = set(self.sim.scheduler.unfinished_ids)
            live = [request_id for request_id in live if request_id in unfinished]
        for _ in range(20_000):
            if not self.sim.scheduler.has_unfinished:
                break
            self._take(self.sim.step())
        self._check_end()

    def _add(self, request_id: str) -> bool:
        """Whether the request was taken. A two-token vocabulary makes shared prefixes and equal blocks common."""
        rng = self.rng
        prompt = [rng.randrange(2) for _ in range(rng.choice([1, 3, 4, 8, 15, 30, 60]))]
        has_states = any(isinstance(window, State) for window in self.sim.windows)  # these are found rarely as it is
        salted, adapted = (len(self.accepted) % every == 1 and not has_states for every in (5, 7))
        try:
            if self.pooling_share and rng.random() < self.pooling_share:
                kind = rng.choice(["last", "cls", "mean"])
                kind = "all" if kind == "mean" and len(self.accepted) % 2 else kind
                self.accepted.append(self.sim.add_pooling(request_id, prompt[:40], kind, rng.randrange(3)))
                return True
            group = self.sim.add(
                request_id,
                prompt,
                tiles=self._tiles(len(prompt)),
                priority=rng.randrange(3),
                end=1 if rng.random() < 0.2 else None,
                max_tokens=rng.choice([1, 2, 9, 30]),
                prompt_logprobs=rng.choice([None, None, 0]),
                cache_salt="salt" if salted else "",
                adapter_digest=b"adapter" if adapted else b"",
                **rng.choice([{}, {}, {}, {"n": 2}, {"n": 4}, {"beam_width": 3}]),
            )
        except InvalidRequestError:
            self.num_refused += 1
            return False
        self.accepted.append(group)
        return True

    def _tiles(self, prompt_len: int) -> tuple[TilePlace, ...]:
        """Some pictures in a prompt, side by side or not. The last token is no row of one."""
        places: list[TilePlace] = []
        start = self.rng.randrange(4) if self.picture_rows else prompt_len
        while start + self.picture_rows < prompt_len:
            places.append(TilePlace(TILE, start, self.picture_rows, RowGeometry(is_mutual=True)))
            start += self.picture_rows + self.rng.randrange(5)
        return tuple(places)

    def _abort(self, request_id: str) -> None:
        group = self.sim.scheduler.abort(request_id)
        if group is None:
            return
        self.num_aborted += 1
        self.ends.update(seq.seq_id for seq in group.seqs if seq.status.finish_reason == "abort")
        self.sim.block_space.check_conservation()

    def _take(self, updates: list[SequenceUpdate]) -> None:
        self.ends.update(update.seq.seq_id for update in updates if update.is_end)

    def _check_end(self) -> None:
        sim = self.sim
        assert not sim.scheduler.has_unfinished, "requests that never end"
        assert sim.block_space.num_used_blocks == 0 and sim.block_space.num_used_host_blocks == 0
        assert sim.scheduler.roster._members == {} and len(sim.scheduler.waiting) == len(sim.scheduler.swapped) == 0
        for group in self.accepted:
            assert group.is_finished
            reason = group.seqs[0].status.finish_reason
            if group.request.params.beam_width:
                assert reason == "abort" or group.hypotheses
                continue
            for seq in group.seqs:
                assert self.ends[seq.seq_id] == 1, "every sequence ends exactly once"
            if group.pooled is not None and reason == "stop":
                _check_pooled(group.pooled, group.request)
            if group.request.params.prompt_logprobs is not None and reason in ("stop", "length"):
                targets = [row[0][0] for row in group.prompt_logprobs]
                assert targets == group.request.prompt_token_ids[1:] or group.seqs[0].output_len == 0


def _check_pooled(pooled: Pooled, request: GenerateRequest) -> None:
    """Of (1, position, token), as the simulated worker gives the rows."""
    if isinstance(pooled, PooledRows):
        assert pooled.mean() == _mean_row(request.prompt_token_ids, pooled.kind)
        return
    rows = [[1.0, float(position), float(token)] for position, token in enumerate(request.prompt_token_ids)]
    assert request.pooling is not None and pooled.data(request.pooling).tolist() == rows


def _mean_row(prompt: list[int], kind: str) -> list[float]:
    """Of (1, position, token), as the simulated worker gives the rows."""
    rows = [(1.0, float(position), float(token)) for position, token in enumerate(prompt)]
    chosen = {"last": rows[-1:], "cls": rows[:1], "mean": rows}[kind]
    return [sum(column) / len(chosen) for column in zip(*chosen, strict=True)]
