"""Adapters: the LoRA adapters of one engine, from a request's name for one to a number that workers know, and a digest
of its content, by which KV is found again: by the same adapter alone, also in another engine.

Workers keep as many adapters in host memory as `max_cpu_loras` says, those in use included. The one that was not used
for the longest time goes first. Its folder is read again when a request needs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lullm.config.json_file import given_path
from lullm.config.lora.adapter import adapter_digest
from lullm.config.resolved import ResolvedConfig
from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.executor.executor import Executor
from lullm.log import get_logger
from lullm.sched.adapter.queue import AdapterQueue
from lullm.types.lora.request import LoRARequest
from lullm.types.request import GenerateRequest
from lullm.units import format_bytes

logger = get_logger(__name__)


@dataclass(slots=True)
class _Known:
    """An adapter that callers may name. `number`: a new one each time that it is added."""

    lora: LoRARequest
    number: int
    is_pinned: bool = False


def check_enabled(config: ResolvedConfig) -> None:
    """Check that the engine takes adapters. Raises InvalidRequestError otherwise."""
    if not config.enable_lora:
        raise InvalidRequestError("a LoRA adapter needs an engine with enable_lora=True", "lora_request")


def as_lora(given: LoRARequest | Mapping[str, Any]) -> LoRARequest:
    """A caller's adapter; a mapping has come from another process. Raises InvalidRequestError."""
    if isinstance(given, Mapping):
        return LoRARequest(**given)
    if not isinstance(given, LoRARequest):
        raise InvalidRequestError(f"lora_request must be a LoRARequest, not {type(given).__name__}", "lora_request")
    return given


def is_added(known: LoRARequest | None, lora: LoRARequest) -> bool:
    """Whether an adapter was added before. `known`: the one that has its id; None: none has.

    Raises InvalidRequestError: the id is another adapter's.
    """
    if known is not None and known != lora:
        raise InvalidRequestError(
            f"lora_int_id {lora.lora_int_id} is the adapter {known.lora_name!r} of {known.lora_path}; give each "
            "adapter an id of its own, or remove that one first",
            "lora_request",
        )
    return known is not None


class Adapters:
    """The adapters by the ids of callers. `queue` knows which of them are in use."""

    def __init__(self, config: ResolvedConfig, executor: Executor, queue: AdapterQueue):
        self._config = config
        self._executor = executor
        self._queue = queue
        self._known: dict[int, _Known] = {}
        self._paths: dict[int, str] = {}  # by number; also of adapters that were removed while in use
        self._digests: dict[int, bytes] = {}  # of the same
        self._read: dict[int, None] = {}  # numbers of those in host memory, the least recently used first
        self._num_added = 0

    @property
    def ids(self) -> set[int]:
        """The ids of all adapters."""
        return set(self._known)

    def add(self, lora: LoRARequest) -> bool:
        """Read an adapter, so that requests may name it. Blocking. False: it was added before.

        Raises:
            InvalidRequestError: adapters are off, or the id is another adapter's.
            ModelLoadError: the folder is no adapter for the model.
        """
        check_enabled(self._config)
        known = self._known.get(lora.lora_int_id)
        if is_added(None if known is None else known.lora, lora):
            return False
        self._forget_removed()
        number = self._num_added + 1
        self._paths[number] = str(given_path(lora.lora_path))
        try:
            self._bring(number)
        except BaseException:
            del self._paths[number]
            self._digests.pop(number, None)
            raise
        self._num_added = number
        self._known[lora.lora_int_id] = _Known(lora, number)
        return True

    def remove(self, lora_id: int) -> bool:
        """Forget an adapter; requests that have it already go on with it. False: there is no such adapter."""
        check_enabled(self._config)
        known = self._known.pop(lora_id, None)
        self._forget_removed()
        return known is not None

    def pin(self, lora_id: int) -> bool:
        """Keep an adapter in host memory until it is removed. False: there is no such adapter.

        Raises InvalidRequestError: the others would have no room. ModelLoadError: it cannot be read.
        """
        check_enabled(self._config)
        known = self._known.get(lora_id)
        if known is None:
            return False
        num_pinned = sum(each.is_pinned for each in self._known.values())
        if not known.is_pinned and num_pinned >= self._config.num_kept_loras - self._config.max_loras:
            raise InvalidRequestError(
                f"max_cpu_loras={self._config.num_kept_loras} has room for max_loras={self._config.max_loras} adapters "
                f"in use and {num_pinned} pinned ones; raise it",
                "lora_id",
            )
        self._bring(known.number)
        known.is_pinned = True
        return True

    def admit(self, request: GenerateRequest) -> GenerateRequest:
        """The request with the number of its adapter, which is read if it is new.

        Raises InvalidRequestError as `add` does, or because the folder is no adapter for the model, or has another
        content than the request says.
        """
        if request.lora is None:
            return request
        try:
            self.add(request.lora)
        except ModelLoadError as error:
            raise InvalidRequestError(str(error), "lora_request") from None
        known = self._known[request.lora.lora_int_id]
        if known.number in self._read:
            self._read[known.number] = self._read.pop(known.number)
        digest = self._digests[known.number]
        if request.adapter_digest not in (b"", digest):
            raise InvalidRequestError(
                f"{request.lora.lora_path} has another content than when the adapter {request.lora.lora_name!r} was "
                "added; remove the adapter and add it again",
                "lora_request",
            )
        return replace(request, adapter=known.number, adapter_digest=digest)

    @property
    def has_unread(self) -> bool:
        """Whether `read_wanted` has work to do. Cheap, since every step asks."""
        return self._config.enable_lora and bool(self._queue.wanted())

    def read_wanted(self) -> dict[int, str]:
        """Read what the next plan needs. No step is in flight. Returns the numbers that cannot be read, and why."""
        failed: dict[int, str] = {}
        for number in self._queue.wanted():
            try:
                self._bring(number)
            except ModelLoadError as error:
                logger.error("an adapter cannot be read again: %s", error)
                failed[number] = f"its adapter cannot be read again: {error}"
        return failed

    def forget_places(self) -> None:
        """The memory of all places was released; adapters come back at the next steps."""
        self._queue.forget_places()

    def forget_read(self) -> None:
        """Forget what was read, in host memory and in places: folders are read again."""
        for number in list(self._read):
            self._drop(number)
        self.forget_places()

    def forget_workers(self) -> None:
        """Workers are new, and have read nothing."""
        self._read.clear()
        self._queue.readable.clear()
        self.forget_places()

    def _bring(self, number: int) -> None:
        """Have an adapter in host memory. Raises ModelLoadError."""
        if number in self._read:
            return
        pinned = {known.number for known in self._known.values() if known.is_pinned}
        while len(self._read) >= self._config.num_kept_loras:
            keeps = pinned | self._queue.in_use()
            self._drop(next((each for each in self._read if each not in keeps), next(iter(self._read))))
        path = self._paths[number]
        num_bytes = self._executor.read_adapter(number, path)
        try:
            digest = adapter_digest(Path(path))
            if self._digests.setdefault(number, digest) != digest:
                raise ModelLoadError(f"{path} has changed since it was added; remove the adapter and add it again")
        except ModelLoadError:
            self._executor.drop_adapter(number)
            raise
        logger.info("adapter: %s in %s", format_bytes(num_bytes), path)
        self._read[number] = None
        self._queue.readable.add(number)

    def _drop(self, number: int) -> None:
        self._executor.drop_adapter(number)
        self._read.pop(number, None)
        self._queue.readable.discard(number)

    def _forget_removed(self) -> None:
        """Forget removed adapters that no request has any more."""
        gone = self._paths.keys() - {known.number for known in self._known.values()}
        for number in gone - self._queue.in_use() - {group.adapter for group in self._queue}:
            self._drop(number)
            self._queue.forget(number)
            del self._paths[number], self._digests[number]
