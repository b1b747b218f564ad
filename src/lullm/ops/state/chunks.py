"""Whether recurrent states have room for the tokens of an unfinished chunk: where native code computes by chunks."""

from dataclasses import replace

from lullm.config.layer.recurrent import DeltaNetConfig, StateSpaceConfig
from lullm.config.model import ModelConfig
from lullm.ops.cpu.library import load_library
from lullm.types.layer_kind import RecurrentState


def with_chunks_of_use(model: ModelConfig, device: str, dtype: str, num_workers: int = 1) -> ModelConfig:
    """The model, without that room where steps go token by token: it is 7 to 48 % of a state.

    Several workers have it on any CPU: their states are alike, and one of their machines may have tiles. Raises
    ConfigError as `load_library` does.
    """
    recurrent = model.family.recurrent
    if not isinstance(recurrent, DeltaNetConfig | StateSpaceConfig):
        return model
    if device == "cpu" and dtype == "bfloat16" and (num_workers > 1 or _has_tiles()):
        return model
    recurrent = replace(recurrent, keeps_chunks=False)
    state = RecurrentState(recurrent.state_shapes)
    kinds = tuple(state if isinstance(kind, RecurrentState) else kind for kind in model.layer_kinds)
    return replace(model, family=replace(model.family, recurrent=recurrent), layer_kinds=kinds)


def _has_tiles() -> bool:
    library = load_library()
    return library is not None and library.isa == "amx"
