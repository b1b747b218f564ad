"""WeightStore: what the parameters of one model hold now: how it got there, what has been changed since, which version.

Weights come from a checkpoint, which is their backup as long as nobody changes them. A trainer changes them tensor by
tensor, under the checkpoint's own names; those parameters are `modified` from then on. Every change makes a new
`version`, by which others notice that what they computed before is of the past.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import torch
from torch import nn

from lullm.arena.backup import Backup, checksum
from lullm.errors import EngineAsleepError, ModelLoadError, WakeUpError
from lullm.ops.table import Ops
from lullm.weights.packing import packed_parameters
from lullm.weights.rule import trainer_name
from lullm.weights.target import WeightTarget, WeightTargets


class WeightStore:
    """The weights of a materialised model. Changes that do not go through here are not noticed.

    Args:
        fill: reads all weights from where they come from into their places, and packs them.
        verify: keep checksums of what was read, for `restore` to compare with.

    Attributes:
        version: 0 after the first `load`; goes up with every change. Level-1 sleep is no change.
        modified: names of parameters that differ from what `load` read.
        is_resident: whether the memory is there; kept by whoever releases it.
        has_news: something was changed since the weights were loaded or restored.
        fill_s: seconds that reading and verifying took, the last time.
    """

    def __init__(self, model: nn.Module, ops: Ops, fill: Callable[[], None], verify: bool):
        self._model = model
        self._ops = ops
        self._fill = fill
        self._verify = verify
        self._checksums: dict[str, int] = {}
        self.version = -1
        self.modified: set[str] = set()
        self.is_resident = True
        self.has_news = False
        self.fill_s = 0.0

    def load(self) -> None:
        """Read everything: a new version, nothing of which is modified. Blocking.

        Raises:
            ModelLoadError, OSError: the weights are a mixture now, of no use until a `load` succeeds.
        """
        started = time.perf_counter()
        self._fill()
        self.version += 1
        self.modified.clear()
        self.has_news = False
        if self._verify:
            self._checksums = self._measure(dict(self._model.named_parameters()))
        self.fill_s = time.perf_counter() - started

    def restore(self, saved: Collection[str], backup: Backup | None, settle: Callable[[], None]) -> None:
        """Bring back what was here before the memory was released: `saved` from `backup`, all others read again.

        Args:
            settle: waits until what was read is in its place. A backup comes on a stream of its own, over all that the
                checkpoint has in the same places.

        Raises:
            WakeUpError: it is not what it was. ModelLoadError, OSError: it cannot be read.
        """
        others = {name: p for name, p in self._model.named_parameters() if name not in saved}
        if others:
            started = time.perf_counter()
            pushed = [(buffer, buffer.clone()) for name, buffer in self._model.named_buffers() if name in self.modified]
            try:
                self._fill()
            finally:  # buffers do not sleep, but filling writes the checkpoint's over them
                for buffer, content in pushed:
                    buffer.copy_(content)
            self._compare(others)
            settle()
            self.fill_s = time.perf_counter() - started
        if backup is not None:
            backup.restore(self.parameters(saved))
        self.has_news = False

    def update(self, weights: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
        """Replace some weights by tensors under the checkpoint's names, or what a trainer's wrappers make of them.

        Any floating point type, from any device. Blocking. See `WeightUpdate`.

        Returns:
            The checkpoint's names of what was replaced; what the rules drop (a tied head) is passed over.

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
        return WeightUpdate(self)

    def check_resident(self) -> None:
        """Return if the weights are there. Raises EngineAsleepError otherwise."""
        if not self.is_resident:
            raise EngineAsleepError("the weights are asleep; call wake_up(tags=['weights']) before changing them")

    def parameters(self, names: Collection[str]) -> Iterator[nn.Parameter]:
        """In an order that stays; as they lie in memory, packed."""
        for name, parameter in self._model.named_parameters():
            if name in names:
                yield parameter

    @cached_property
    def names(self) -> frozenset[str]:
        """Of all parameters."""
        return frozenset(name for name, _ in self._model.named_parameters())

    @property
    def num_bytes(self) -> int:
        """Of all parameters."""
        return sum(parameter.nbytes for parameter in self._model.parameters())

    @cached_property
    def targets(self) -> WeightTargets:
        """Where tensors of a checkpoint go."""
        return WeightTargets(self._model)

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

    def _measure(self, parameters: dict[str, nn.Parameter]) -> dict[str, int]:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return dict(zip(parameters, pool.map(checksum, parameters.values()), strict=True))

    def open_packed(self, target: WeightTarget) -> None:
        """Make the target's parameter lie as a checkpoint has it; it is modified from now on."""
        self.modified.add(target.parameter_name)
        if target.parameter_name in self._packed_names:
            self._ops.unpack_weight_(target.parameter)

    def close_packed(self, target: WeightTarget) -> None:
        """Make the target's parameter lie as the ops want it."""
        if target.parameter_name in self._packed_names:
            self._ops.pack_weight_(target.parameter)


class WeightUpdate:
    """New tensors for some weights: `write` any number of times, then `close`, which makes a new version.

    A matrix whose parts come one after the other is unpacked and packed once.

    Attributes:
        applied: the checkpoint's names of what was replaced so far.
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
        if self._opened is None or self._opened.parameter_name != target.parameter_name:
            self._close_opened()
            self._store.open_packed(target)
            self._opened = target
        with torch.no_grad():  # the caller may be computing in a mode of its own
            target.rows.copy_(tensor)
        self.applied.append(target.name)

    def close(self) -> None:
        """The new version is complete. Once."""
        self._close_opened()
        if self.applied:
            self._store.version += 1
            self._store.has_news = True

    def _close_opened(self) -> None:
        if self._opened is not None:
            self._store.close_packed(self._opened)
            self._opened = None


def explain_applied(names: list[str]) -> str:
    """Which tensors an update had replaced when it failed."""
    if not names:
        return "No weight was replaced"
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{len(names)} tensors before it were replaced and stay so: {shown}"
