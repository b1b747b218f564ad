"""Beside: what an engine holds beside its model, adapters and a draft model, by the engine's own options."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lullm.cli.plan.model import PlannedModel, read_model
from lullm.cli.plan.needs import Needs
from lullm.config.agreement.model import check_for_model
from lullm.config.agreement.speculation import check_draft
from lullm.config.engine import EngineConfig
from lullm.config.gguf.mmproj.finding import NONE
from lullm.config.model import ModelConfig
from lullm.config.option.option import options_of
from lullm.config.option.speculation import parse_speculation
from lullm.config.parallel.share import share_of
from lullm.errors import ModelLoadError
from lullm.types.parallel.placement import Axis

if TYPE_CHECKING:
    from lullm.models.protocol import Model

OPTIONS = frozenset(each.name for each in options_of(EngineConfig) if each.group == "LoRA") | {
    "speculative_config",
    "mmproj",
}
"""The engine's options that ask for memory beside the model."""


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A draft model, which has the types of the model's activations. `quantization`: None: as it is stored."""

    model: PlannedModel
    quantization: str | None

    def of_worker(self, num_workers: int) -> PlannedModel:
        """A worker's part. Raises ConfigError: so many cannot share it."""
        return self.model.part(share_of(self.model.config, Axis(0, num_workers)))


@dataclass(frozen=True, slots=True)
class Beside:
    """By default nothing. `options`: of the engine. `draft`: None: there is none."""

    options: EngineConfig = field(default_factory=EngineConfig)
    draft: DraftPlan | None = None

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of a table's columns."""
        return *["ADAPTERS"] * self.options.enable_lora, *["DRAFT"] * (self.draft is not None)

    def sizes(self, each: Needs) -> tuple[int, ...]:
        """What stands in these columns, in bytes."""
        adapters, draft = [each.adapters_bytes], [each.draft_bytes]
        return *adapters * self.options.enable_lora, *draft * (self.draft is not None)

    def check_layout(self, tensor: int, pipeline: int) -> None:
        """Check that an engine with so many workers takes the options. Raises ConfigError, UnsupportedError."""
        replace(self.options, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)

    def adapters_bytes(self, model: "Model", config: ModelConfig, on_gpu: bool) -> int:
        """Bytes of the places of adapters, and of adapters kept in the same memory. Raises ModelLoadError."""
        import torch

        from lullm.weights.lora.places import adapters_bytes

        return sum(adapters_bytes(model, self.options, getattr(torch, config.dtype), not on_gpu))


def read_beside(options: EngineConfig, model: PlannedModel) -> Beside:
    """Read what the options ask for beside a model. Fetches no weights.

    Raises:
        ConfigError, UnsupportedError: the options do not go with the model.
        ModelLoadError: the draft model cannot be read.
    """
    check_for_model(options, model.config)
    speculation = parse_speculation(options.speculative_config)
    if speculation is None or speculation.method != "draft_model":
        return Beside(options)
    try:
        draft = read_model(speculation.model, speculation.revision, NONE)
    except ModelLoadError as error:
        raise ModelLoadError(f"speculative_config: the draft model: {error}") from None
    check_draft(options, model.config, draft.config, speculation.model)
    draft = replace(draft, config=replace(draft.config, dtype=model.config.dtype), on_gpu=model.on_gpu)
    return Beside(options, DraftPlan(draft, speculation.quantization))
