"""MemberAdapters: the adapters (LoRA) of one model of a fleet, whether its engine is there or not.

An adapter is compared with the model on the meta device, so adding one loads and wakes nothing. The engine reads it at
the first request that names it: so adapters outlive sleeps, and engines.
"""

import asyncio
import dataclasses
from pathlib import Path

from lullm.config.json_file import given_path
from lullm.config.lora.adapter import adapter_digest
from lullm.engine.lora.adapters import check_enabled, is_added
from lullm.engine.start.model import OpenedModel
from lullm.fleet.need import built_model
from lullm.types.lora.request import LoRARequest
from lullm.types.request import GenerateRequest


class MemberAdapters:
    """The adapters of one model, by the ids of callers, with digests of their contents. Lives on the event loop."""

    def __init__(self, opened: OpenedModel):
        self._opened = opened
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
        check_enabled(self._opened.config)
        if is_added(self._known.get(lora.lora_int_id, (None,))[0], lora):
            return False
        digest = await asyncio.to_thread(_compared, self._opened, given_path(lora.lora_path))
        self._known[lora.lora_int_id] = lora, digest
        return True

    def remove(self, lora_id: int) -> bool:
        """Forget an adapter. False: there is no such adapter. Raises InvalidRequestError: adapters are off."""
        check_enabled(self._opened.config)
        return self._known.pop(lora_id, None) is not None

    def signed(self, request: GenerateRequest) -> GenerateRequest:
        """The request with the digest of its adapter, so that no engine computes it with another content."""
        lora = request.lora
        known = None if lora is None else self._known.get(lora.lora_int_id)
        return request if known is None else dataclasses.replace(request, adapter_digest=known[1])


def _compared(opened: OpenedModel, folder: Path) -> bytes:
    """The digest of an adapter that fits the model. Blocking: reads it, and throws it away. Raises ModelLoadError."""
    import torch

    from lullm.weights.lora.layers import lora_layers
    from lullm.weights.lora.reading import read_adapter

    config = opened.config
    built = built_model(config, opened.model_config, opened.folder)
    read_adapter(folder, lora_layers(built), built.rules, config.max_lora_rank, getattr(torch, config.dtype))
    return adapter_digest(folder)
