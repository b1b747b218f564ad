"""Draft: a draft model with its weights, in the arena `draft`, and with the steps that it takes part in."""

from dataclasses import dataclass, replace

from lullm.kv.layout import cache_layout_of
from lullm.step.runner import ModelRunner
from lullm.worker.draft.paired_steps import PairedSteps
from lullm.worker.kv_pools import KVPools
from lullm.worker.loaded_model import LoadedModel, load_model
from lullm.worker.setup import WorkerSetup


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model that is loaded. Its setup shares the device, the threads and the seat of the model's."""

    setup: WorkerSetup
    loaded: LoadedModel

    def fitted(self, max_model_len: int) -> "Draft":
        """The same for sequences of at most `max_model_len` tokens."""
        return replace(self, setup=self.setup.fitted(min(max_model_len, self.setup.config.max_model_len)))

    def new_runner(self, pools: KVPools) -> ModelRunner:
        """A runner of its steps, over its part of the blocks."""
        assert pools.draft is not None, "the pools were mapped for both models"
        part = pools.draft
        return self.setup.new_model_runner(self.loaded.model, part.device, part.host, part.workspace)

    def paired(self, setup: WorkerSetup, runner: ModelRunner, own: ModelRunner) -> PairedSteps:
        """Steps of both. `setup`, `runner`: the model's; `own`: from `new_runner`."""
        config = setup.config
        cache = cache_layout_of(setup.model_config, config.block_size, config.kv_dtype).whole_group
        assert cache is not None, "checked before the engine was built"
        return PairedSteps(runner, own, cache, setup.device.is_accelerator)


def open_draft(setup: WorkerSetup) -> Draft | None:
    """Load the draft model of a worker; None: it has none. Blocking. Raises ModelLoadError, CacheSizeError."""
    own, draft = setup.of_draft(), setup.config.draft
    return None if own is None or draft is None else Draft(own, load_model(own, draft.folder, "draft"))
