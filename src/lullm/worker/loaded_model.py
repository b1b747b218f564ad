"""LoadedModel: a model, the arena of its weights, and the store with their versions."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from torch import Tensor

from lullm.arena.arena import Arena
from lullm.config.gguf.file import is_gguf
from lullm.errors import CacheSizeError, EngineDeadError, ModelLoadError
from lullm.log import get_logger
from lullm.models.protocol import Model
from lullm.models.registry import build_model
from lullm.nn.attention import add_kv_scales
from lullm.nn.kv_scale import KVScales, kv_scales_of
from lullm.ops.cpu import native
from lullm.units import format_bytes
from lullm.weights.dummy import fill_dummy_weights
from lullm.weights.headers import check_headers, check_num_weights
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes
from lullm.weights.packing import pack_weights
from lullm.weights.reading.mapped import LEAST_BYTES, MappedWeights
from lullm.weights.storage import choose_storage
from lullm.weights.store import WeightStore
from lullm.worker.setup import WorkerSetup

logger = get_logger(__name__)

_ENOUGH = 0.75
"""Share of the weights' memory that was touched during the imports: the rest comes as fast. Slower starts reach 0.4."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its weights. `arena`: the memory of all parameters, with the tag 'weights', or 'draft'."""

    model: Model
    store: WeightStore
    arena: Arena

    @property
    def kv_scales(self) -> list[KVScales]:
        """By layer; empty if the KV cache is not fp8."""
        return kv_scales_of(self.model)


def load_model(setup: WorkerSetup, folder: Path, tag: Literal["weights", "draft"] = "weights") -> LoadedModel:
    """Build the model of a folder and fill its weights. Blocking. Raises ModelLoadError, CacheSizeError.

    `tag`: of their arena. A draft model's are never read in their files: they are few.
    """
    config = setup.config
    has_files = config.load_format != "dummy"
    if has_files and setup.model_config.foreign is None:
        check_headers(setup.whole_config, folder)
    model = build_model(setup.model_config, setup.dtype, config.max_model_len)
    if has_files and setup.model_config.foreign is not None:
        check_num_weights(model, folder)
    if config.takes_rows and not model.reads_shown and tag == "weights":
        raise ModelLoadError(
            f"{setup.model_config.architecture} reads no rows in place of tokens (Model.reads_shown); leave "
            "enable_prompt_embeds and enable_prompt_adapter out"
        )
    keeps = has_files and config.device == "cpu"
    encoding = setup.model_config.encoding
    num_as_stored = choose_storage(model, encoding, config.quantization, folder if keeps else None)
    if config.kv_dtype == "fp8_e4m3":
        add_kv_scales(model)
    num_bytes = weights_bytes(model)
    _check_room(setup, num_bytes)
    arena = setup.device.new_arena(tag, num_bytes)
    try:
        materialize(model, arena)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):  # small and computed, so they do not sleep
                setattr(module, name, buffer.to(setup.device.torch_device))
        may_map = tag == "weights" and _may_map(setup, model, folder, arena)
        mapped = MappedWeights(model) if may_map else None
        fill = partial(fill_weights, setup, model, mapped=mapped)
        verify = config.enable_sleep_mode and config.verify_wake
        store = WeightStore(model, setup.ops, fill, folder if has_files else None, verify, mapped)
        model.update_weights = _updating(weakref.ref(store))  # no circle: the last engine to go frees the arena
        store.load()
    except BaseException:
        arena.close()
        raise
    kind: str = config.quantization or config.dtype
    if num_as_stored:
        kind += f", {num_as_stored} matrices quantized as they are stored"
    logger.info("%s: %s in %s", tag if tag == "weights" else "draft model", format_bytes(arena.used_bytes), kind)
    return LoadedModel(model, store, arena)


def check_checkpoint(setup: WorkerSetup, model: Model, folder: Path) -> None:
    """Whether another checkpoint's headers fit a model that is there. Raises ModelLoadError."""
    if setup.model_config.foreign is None:
        check_headers(setup.whole_config, folder)
    else:
        check_num_weights(model, folder)


def _check_room(setup: WorkerSetup, num_bytes: int) -> None:
    """Raises CacheSizeError: the device's memory is smaller than the weights.

    The kernel of a host would reserve them all the same, and end this process in the middle of the loading.
    """
    total = setup.device.memory_info().total_bytes
    if num_bytes > total:
        raise CacheSizeError(
            f"the weights take {format_bytes(num_bytes)} as {setup.config.quantization or setup.config.dtype}, and "
            f"there are {format_bytes(total)} of memory; `lullm plan` says which quantization or model fits"
        )


def _updating(store: "weakref.ref[WeightStore]") -> Callable[[Iterable[tuple[str, Tensor]]], list[str]]:
    """`WeightStore.update`, while the store is there."""

    def update_weights(weights: Iterable[tuple[str, Tensor]]) -> list[str]:
        found = store()
        if found is None:
            raise EngineDeadError("the engine of this model is gone; keep the LLM or engine object while you use it")
        return found.update(weights)

    return update_weights


def _may_map(setup: WorkerSetup, model: Model, folder: Path, arena: Arena) -> bool:
    """Whether the first steps read matrices in their files. If the arena has its memory, copies are faster."""
    is_native = setup.ops.pack_weight_ is native.pack_weight_
    is_plain = setup.config.maps_weights(setup.model_config) and not is_gguf(folder)
    num_bytes = weights_bytes(model)
    may_map = is_native and is_plain and num_bytes >= LEAST_BYTES
    return may_map and setup.device.resident_bytes(arena) < _ENOUGH * num_bytes


def fill_weights(setup: WorkerSetup, model: Model, folder: Path | None, mapped: MappedWeights | None = None) -> None:
    """Read the weights from a checkpoint; without one make dummy ones. Blocking. Raises ModelLoadError.

    `mapped`: takes matrices that may stay in their files for now.
    """
    for scales in kv_scales_of(model):
        scales.forget_given()
    with setup.threads.scope():
        if folder is None:
            fill_dummy_weights(model, setup.ops, setup.config.seed or 0)
        else:
            vision = None if model.vision is None else setup.model_config.vision  # another stage may have it
            mmproj = None if vision is None else vision.weights_file
            load_weights(model, folder, setup.ops, setup.threads.num_threads, mapped, mmproj)
        if mapped is None:
            pack_weights(model, setup.ops)
        else:
            pack_weights(model, setup.ops, mapped.holds)
            mapped.begin()
