"""WeightStore: loads and changes the parameters of one model, and tracks changes since the load.

Weights come from a checkpoint, which is their backup until an update changes them. An update replaces single tensors
under the checkpoint's names; their parameters are `modified` from then on. Every change makes a new `version`: results
of the old weights (the KV cache) are stale.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import nn

from lullm.arena.backup import Backup
from lullm.arena.checksum import NewDigest, Xxh3Digest, checksum
from lullm.errors import EngineAsleepError, ModelLoadError, WakeUpError
from lullm.ops.table import Ops
from lullm.weights.packing import packed_parameters
from lullm.weights.reading.mapped import MappedWeights
from lullm.weights.rule import trainer_name
from lullm.weights.target import Loadable, WeightTarget, WeightTargets


class WeightStore:
    """The weights of a materialised model. It tracks only changes made through it.

    Args:
        fill: reads all weights of a checkpoint into the parameters, and packs them; None: makes weights of its own.
        checkpoint: see below.
        verify: keep checksums of the read weights, and compare them in `restore`.
        mapped: matrices that the first `fill` may leave in their files; all others settle it first.

    Attributes:
        checkpoint: the folder or file that `load` and `restore` read; None: weights that `fill` makes.
        version: 0 after the first `load`; increases with every change. A level-1 sleep is no change.
        modified: names of parameters that differ from those that `load` read.
        is_resident: whether the parameters have memory; set by the code that releases and maps it.
        has_news: there were changes since the weights were loaded or restored.
        fill_s: seconds of the last reading and verifying.
    """

    def __init__(
        self,
        model: Loadable,
        ops: Ops,
        fill: Callable[[Path | None], None],
        checkpoint: Path | None,
        verify: bool,
        mapped: MappedWeights | None = None,
    ):
        self._model = model
        self._ops = ops
        self._fill = fill
        self.checkpoint = checkpoint
        self._verify = verify
        self._mapped = mapped
        self._checksums: dict[str, int] = {}
        self.version = -1
        self.modified: set[str] = set()
        self.is_resident = True
        self.has_news = False
        self.fill_s = 0.0

    def load(self, checkpoint: Path | None = None) -> None:
        """Read all weights: a new version without modified parameters. Blocking.

        Args:
            checkpoint: read this one. It does not become `self.checkpoint`: other workers may fail to read theirs.

        Raises:
            ModelLoadError, OSError: old and new weights are mixed, and unusable until a `load` succeeds.
        """
        started = time.perf_counter()
        if self.version >= 0:
            self.close()
        self._fill(checkpoint or self.checkpoint)
        self.version += 1
        self.modified.clear()
        self.has_news = False
        self._checksums.clear()
        if self._mapped is None:
            self._keep_checksums()
        self.fill_s = time.perf_counter() - started

    @property
    def num_mapped_bytes(self) -> int:
        """Bytes of the matrices that have not settled: the arena may lack memory for them."""
        return 0 if self._mapped is None else self._mapped.num_bytes

    def settle_behind(self, num_threads: int) -> None:
        """Begin to bring mapped matrices into their place, beside steps."""
        if self._mapped is not None:
            self._mapped.settle_behind(num_threads)

    def drop_settled(self) -> None:
        """Forget the files of matrices that have settled. Between steps."""
        if self._mapped is not None and self._mapped.is_settled:
            self.close()

    def settle(self) -> None:
        """Bring mapped matrices into their place now. Between steps; blocking. Before all that reads parameters."""
        started = time.perf_counter()
        if self._mapped is not None:
            self._mapped.settle()
            self.close()
            self.fill_s += time.perf_counter() - started
        self._keep_checksums()

    def close(self) -> None:
        """Forget mapped files; what has not settled is lost. Idempotent."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None

    def lasting_checksums(self) -> dict[str, int]:
        """Checksums of all parameters as the ops read them, which other processes can compare. Between steps; blocking.

        Raises EngineAsleepError: the weights are asleep.
        """
        self.check_resident()
        self.settle()
        return self._measure(dict(self._model.named_parameters()), Xxh3Digest)

    def _keep_checksums(self) -> None:
        if self._verify and not self._checksums:
            self._checksums = self._measure(dict(self._model.named_parameters()))

    def restore(
        self,
        saved: Collection[str],
        backup: Backup | None,
        settle: Callable[[], None],
        awaited: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Restore the weights after their memory was released: `saved` from `backup`; all others are read again.

        Args:
            settle: waits until the read weights are in place. The backup is copied on another stream, over the
                checkpoint's weights in the same places.
            awaited: gives a parameter back once memory stands behind it.

        Raises:
            WakeUpError: a checksum differs. ModelLoadError, OSError: the weights cannot be read.
        """
        others = {name: p for name, p in self._model.named_parameters() if name not in saved}
        if others:
            for parameter in others.values():
                awaited(parameter)
            started = time.perf_counter()
            pushed = [(buffer, buffer.clone()) for name, buffer in self._model.named_buffers() if name in self.modified]
            try:
                self._fill(self.checkpoint)
            finally:  # buffers kept their values during the sleep, but `fill` has overwritten them
                for buffer, content in pushed:
                    buffer.copy_(content)
            self._compare(others)
            settle()
            self.fill_s = time.perf_counter() - started
        if backup is not None:
            backup.restore(map(awaited, self.parameters(saved)))
        self.has_news = False

    def update(self, weights: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
        """Replace some weights by tensors under the checkpoint's names, with or without a trainer's prefixes.

        Tensors may have any floating point type and device. Consecutive parts of one matrix are unpacked and packed
        once. Blocking.

        Returns:
            The checkpoint's names of the replaced tensors. Tensors that the rules drop (a tied head) are skipped.

        Raises:
            EngineAsleepError: the weights are asleep. ModelLoadError: an unexpected tensor, or one of another shape
                or type. The tensors before it stay replaced, and the message names them.
        """
        update = self.begin_update()
        try:
            for name, tensor in weights:
                update.write(name, tensor)
        except ModelLoadError:
            raise
        except BaseException as error:
            error.add_note(explain_applied(update.applied))
            raise
        finally:
            update.close()
        return update.applied

    def begin_update(self) -> "WeightUpdate":
        """An update whose tensors come one by one. Raises EngineAsleepError: the weights are asleep."""
        self.check_resident()
        self.settle()
        return WeightUpdate(self)

    def check_resident(self) -> None:
        """Raises EngineAsleepError: the weights have no memory now."""
        if not self.is_resident:
            raise EngineAsleepError("the weights are asleep; call wake_up(tags=['weights']) before changing them")

    def facts_of(self, names: Iterable[str]) -> dict[str, tuple[int | None, bool]]:
        """The facts of parameters: the checksum when read, and whether they changed since."""
        return {name: (self._checksums.get(name), name in self.modified) for name in names}

    def rename(self, gone: Collection[str], come: Mapping[str, tuple[int | None, bool]]) -> None:
        """Replace the facts of parameters `gone` by those of `come`."""
        for name in gone:
            self._checksums.pop(name, None)
            self.modified.discard(name)
        self._checksums |= {name: checksum for name, (checksum, _) in come.items() if checksum is not None}
        self.modified |= {name for name, (_, is_modified) in come.items() if is_modified}
        for cached in ("names", "targets", "_packed_names"):
            vars(self).pop(cached, None)

    def parameters(self, names: Collection[str]) -> Iterator[nn.Parameter]:
        """The parameters of these names, packed, always in the same order."""
        for name, parameter in self._model.named_parameters():
            if name in names:
                yield parameter

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all parameters."""
        return frozenset(name for name, _ in self._model.named_parameters())

    @property
    def num_bytes(self) -> int:
        """The size of all parameters."""
        return sum(parameter.nbytes for _, parameter in self._model.named_parameters())

    @cached_property
    def targets(self) -> WeightTargets:
        """The places of a checkpoint's tensors."""
        return WeightTargets(self._model, self._ops)

    def open_packed(self, target: WeightTarget) -> None:
        """Unpack the target's parameters into the checkpoint's order; they are modified from now on."""
        self.modified |= target.parameters.keys()
        for name, parameter in target.parameters.items():
            if name in self._packed_names:
                self._ops.unpack_weight_(parameter)

    def close_packed(self, target: WeightTarget) -> None:
        """Pack the target's parameters into the ops' order."""
        for name, parameter in target.parameters.items():
            if name in self._packed_names:
                self._ops.pack_weight_(parameter)

    @cached_property
    def _packed_names(self) -> frozenset[str]:
        packed = {id(weight) for weight in packed_parameters(self._model)}
        return frozenset(name for name, parameter in self._model.named_parameters() if id(parameter) in packed)

    def _compare(self, parameters: dict[str, nn.Parameter]) -> None:
        if not self._verify:
            return
        for name, found in self._measure(parameters).items():
            if found != self._checksums[name]:
                raise WakeUpError(
                    f"the weights are not what they were: {name} has another checksum than before the sleep; has the "
                    "checkpoint changed? sleep(level=2, tags=['weights']) makes the next wake_up() take it as it is"
                )

    def _measure(self, parameters: dict[str, nn.Parameter], new_digest: NewDigest | None = None) -> dict[str, int]:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            measure = partial(checksum, new_digest=new_digest or self._ops.new_digest)
            return dict(zip(parameters, pool.map(measure, parameters.values()), strict=True))


class WeightUpdate:
    """New tensors for some weights: `write` any number of times, then `close`, which makes a new version.

    A matrix whose parts come one after the other is unpacked and packed once.

    Attributes:
        applied: the checkpoint's names of the tensors replaced so far.
    """

    def __init__(self, store: WeightStore):
        self.applied: list[str] = []
        self._store = store
        self._opened: WeightTarget | None = None

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Replace one tensor. Blocking. Raises ModelLoadError: see `WeightStore.update`."""
        try:
            target = self._store.targets.find(trainer_name(name), tensor)
        except ModelLoadError as error:
            hint = "; push merged weights, without the adapter's own" if "lora_" in str(error) else ""
            raise ModelLoadError(f"{error}{hint}. {explain_applied(self.applied)}") from None
        if target is None:
            return
        if self._opened is None or self._opened.parameters.keys() != target.parameters.keys():
            self._close_opened()
            self._store.open_packed(target)
            self._opened = target
        with torch.no_grad():  # the caller may be in another mode
            target.rows.write(tensor)
        self.applied.append(target.name)

    def close(self) -> None:
        """Complete the new version. Call once."""
        self._close_opened()
        if self.applied:
            self._store.version += 1
            self._store.has_news = True

    def _close_opened(self) -> None:
        if self._opened is not None:
            self._store.close_packed(self._opened)
            self._opened = None


def explain_applied(names: list[str]) -> str:
    """The tensors that a failed update has replaced, in words."""
    if not names:
        return "No weight was replaced"
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{len(names)} tensors before it were replaced and stay so: {shown}"
