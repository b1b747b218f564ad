"""PromptAdapters: the prompt adapters of one engine, from a request's name for one to the rows before its prompt.

They are read where requests are prepared, and go with each request: an engine and its workers know rows, no adapters.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from lullm.config.json_file import given_path
from lullm.config.lora.adapter import WEIGHTS_FILE
from lullm.config.lora.prompt_adapter import PromptAdapterConfig
from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.engine.rows.embeds import row_size
from lullm.engine.rows.values import RowsError, checked, pieces, stored_array
from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.log import get_logger
from lullm.text.template.failure import WouldBlock
from lullm.types.lora.prompt_adapter import PromptAdapterRequest
from lullm.types.vision.given import GivenRows

logger = get_logger(__name__)

FIELD = "prompt_adapter_request"
_TENSOR = "prompt_embeddings"
_PICKLE = "adapter_model.bin"
_HEADER_BYTES = 1 << 20
"""More than the header of a file with one tensor takes."""
_MOST_ELEMENT_BYTES = 8


@dataclass(slots=True)
class _Known:
    """An adapter that callers may name. `digests`: of its rows when it was added. `rows`: empty: to be read again."""

    request: PromptAdapterRequest
    digests: tuple[bytes, ...]
    rows: tuple[GivenRows, ...]


class PromptAdapters:
    """The adapters by the ids of callers. Safe to call from several threads.

    The rows of the `max_prompt_adapters` that were used last stay in memory.
    """

    def __init__(self, config: ResolvedConfig, model: ModelConfig) -> None:
        self._config = config
        self._size = row_size(model)
        self._known: dict[int, _Known] = {}  # the one that was used last is the last
        self._lock = threading.Lock()

    @property
    def ids(self) -> set[int]:
        """The ids of all adapters."""
        return set(self._known)

    def add(self, given: PromptAdapterRequest) -> bool:
        """Read an adapter, so that requests may name it. Blocking. False: it was added before.

        Raises:
            InvalidRequestError: prompt adapters are off, or the id is another adapter's.
            ModelLoadError: the folder is no prompt adapter for the model.
        """
        request = self._checked(given)
        with self._lock:
            if self._find(request) is not None:
                return False
            self._read(request)
            return True

    def remove(self, adapter_id: int) -> bool:
        """Forget an adapter; requests that have its rows go on. False: there is no such adapter."""
        self._check_enabled()
        with self._lock:
            return self._known.pop(adapter_id, None) is not None

    def rows(self, given: PromptAdapterRequest | None, may_block: bool) -> tuple[GivenRows, ...]:
        """The rows before a request's prompt; those of an adapter that is new are read.

        Raises:
            InvalidRequestError: as `add`, or because the folder is no prompt adapter for the model, or has another
                content than when it was added.
            WouldBlock: they have to be read, and `may_block` is False.
        """
        if given is None:
            return ()
        request = self._checked(given)
        if not self._lock.acquire(blocking=may_block):  # another thread may read a folder
            raise WouldBlock
        try:
            known = self._find(request)
            if known is not None and known.rows:
                self._known[request.adapter_id] = self._known.pop(request.adapter_id)
                return known.rows
            if not may_block:
                raise WouldBlock
            return self._read(request)
        except ModelLoadError as error:
            raise InvalidRequestError(str(error), FIELD) from None
        finally:
            self._lock.release()

    def _check_enabled(self) -> None:
        if not self._config.enable_prompt_adapter:
            raise InvalidRequestError("a prompt adapter needs an engine with enable_prompt_adapter=True", FIELD)

    def _checked(self, given: PromptAdapterRequest) -> PromptAdapterRequest:
        self._check_enabled()
        if not isinstance(given, PromptAdapterRequest):
            raise InvalidRequestError(f"{FIELD} must be a PromptAdapterRequest, not {type(given).__name__}", FIELD)
        return given

    def _find(self, request: PromptAdapterRequest) -> _Known | None:
        known = self._known.get(request.adapter_id)
        if known is not None and known.request != request:
            raise InvalidRequestError(
                f"prompt_adapter_id {request.adapter_id} is the adapter {known.request.name!r} of "
                f"{known.request.path}; give each adapter an id of its own, or remove that one first",
                FIELD,
            )
        return known

    def _read(self, request: PromptAdapterRequest) -> tuple[GivenRows, ...]:
        """Have the rows of an adapter in memory, as those used last."""
        folder = given_path(request.path)
        rows = self._rows_of(folder, request.prompt_adapter_num_virtual_tokens)
        digests = tuple(each.digest for each in rows)
        known = self._known.pop(request.adapter_id, None)
        if known is not None and known.digests != digests:
            self._known[request.adapter_id] = known
            raise ModelLoadError(f"{folder} has changed since it was added; remove the adapter and add it again")
        self._known[request.adapter_id] = _Known(request, digests, rows)
        kept = [each for each in self._known.values() if each.rows]
        for each in kept[: -self._config.max_prompt_adapters]:
            each.rows = ()
        logger.info("prompt adapter: %d rows in %s", sum(each.num_rows for each in rows), folder)
        return rows

    def _rows_of(self, folder: Path, num_said: int) -> tuple[GivenRows, ...]:
        """The rows of PEFT's folder. Raises ModelLoadError."""
        count = PromptAdapterConfig.from_folder(folder).num_rows
        most, max_model_len = self._config.max_prompt_adapter_token, self._config.max_model_len
        if num_said not in (0, count):
            raise ModelLoadError(f"{folder} has {count} rows, not {num_said} (prompt_adapter_num_virtual_tokens)")
        if count > max_model_len - 2:
            raise ModelLoadError(
                f"{folder} has {count} rows, which leave no room for a prompt in {max_model_len} tokens (max_model_len)"
            )
        if most and count > most:
            raise ModelLoadError(f"{folder} has {count} rows, more than max_prompt_adapter_token={most}; raise it")
        values = _stored_rows(folder, count * self._size * _MOST_ELEMENT_BYTES + _HEADER_BYTES)
        if len(values.shape) != 2 or len(values) != count:
            shape = " x ".join(map(str, values.shape))
            raise ModelLoadError(f"{folder}: {_TENSOR} is {shape}, and num_virtual_tokens {count}")
        try:
            rows = checked(values, self._size, self._config.dtype, count)
        except RowsError as error:
            raise ModelLoadError(f"{folder}: {_TENSOR}: {error}") from None
        return pieces(rows, self._config.dtype, self._config.block_size)


def _stored_rows(folder: Path, most_bytes: int) -> np.ndarray:
    """The tensor of an adapter's file, as it is. Raises ModelLoadError."""
    path = folder / WEIGHTS_FILE
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise ModelLoadError(f"{path} has {size} bytes, more than rows of this model take: it is for another one")
        tensors = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        hint = ""
        if (folder / _PICKLE).exists():
            hint = (
                f"; {_PICKLE} is a pickle, which can run code and is never read: load it with PEFT and save it again "
                "(save_pretrained writes safetensors)"
            )
        raise ModelLoadError(f"{folder} has no {WEIGHTS_FILE}{hint}") from None
    except OSError as error:
        raise ModelLoadError(f"{path}: {error.strerror}") from None
    except SafetensorError as error:
        raise ModelLoadError(f"{path} is damaged, or no safetensors file: {error}") from None
    if tensors.keys() != {_TENSOR}:
        raise ModelLoadError(f"{path} has {', '.join(sorted(tensors)) or 'no tensors'}, not {_TENSOR} alone")
    try:
        return stored_array(tensors[_TENSOR])
    except RowsError as error:
        raise ModelLoadError(f"{path}: {error}") from None
