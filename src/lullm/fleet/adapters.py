"""MemberAdapters: the adapters (LoRA) of one model of a fleet, whether its engine is there or not.

An adapter is compared with the model on the meta device, so adding one loads and wakes nothing. The engine reads it at
the first request that names it: so adapters outlive sleeps, and engines.
"""

import asyncio
import dataclasses

from lullm.config.json_file import given_path
from lullm.engine.lora.adapters import check_enabled, is_added
from lullm.fleet.need import PlannedModel
from lullm.types.lora.request import LoRARequest
from lullm.types.request import GenerateRequest


class MemberAdapters:
    """The adapters of one model, by the ids of callers, with digests of their contents. Lives on the event loop."""

    def __init__(self, planned: PlannedModel):
        self._config = planned.opened.config
        self._read = planned.read_adapter
        self._known: dict[int, tuple[LoRARequest, bytes]] = {}

    @property
    def ids(self) -> set[int]:
        """The ids of all adapters."""
        return set(self._known)

    async def add(self, lora: LoRARequest) -> bool:
        """Compare an adapter with the model, so that requests may name it. False: it was added before.

        Raises:
            InvalidRequestError: adapters are off, or the id is another adapter's.
            ModelLoadError: the folder is no adapter for the model.
        """
        check_enabled(self._config)
        assert self._read is not None, "it takes adapters"
        if is_added(self._known.get(lora.lora_int_id, (None,))[0], lora):
            return False
        digest = await asyncio.to_thread(self._read, given_path(lora.lora_path))
        self._known[lora.lora_int_id] = lora, digest
        return True

    def remove(self, lora_id: int) -> bool:
        """Forget an adapter. False: there is no such adapter. Raises InvalidRequestError: adapters are off."""
        check_enabled(self._config)
        return self._known.pop(lora_id, None) is not None

    def signed(self, request: GenerateRequest) -> GenerateRequest:
        """The request with the digest of its adapter, so that no engine computes it with another content."""
        lora = request.lora
        known = None if lora is None else self._known.get(lora.lora_int_id)
        return request if known is None else dataclasses.replace(request, adapter_digest=known[1])
