"""Fleets of tiny real models."""

from pathlib import Path
from typing import Any

from lullm.config.engine import EngineConfig
from lullm.engine.start.model import open_model
from lullm.fleet.fleet import Fleet
from lullm.fleet.need import plan_model
from lullm.fleet.options import FleetOptions, ModelSpec

OPTIONS = {
    "dtype": "float32",
    "kv_cache_memory_bytes": 16 << 20,
    "swap_space": 0.0,
    "max_num_seqs": 16,
    "enable_sleep_mode": True,
}


def spec(name: str, folder: Path | str, engine: dict[str, Any] | None = None, **facts: Any) -> ModelSpec:
    """A model with a KV cache of 16 MiB, beside which its weights are small."""
    config = EngineConfig(**OPTIONS | {"model": str(folder), "served_model_name": name} | (engine or {}))
    return ModelSpec(name=name, config=config, **facts)


def make_fleet(*specs: ModelSpec, fits: float = 1.5, slice_s: float = 0.0, wait_s: float = 60.0, **facts: Any) -> Fleet:
    """A fleet whose budget is `fits` times the need of its largest model."""
    has_process = facts.get("has_process", False)
    needs = [plan_model(each.config, open_model(each.config), 1 << 30, has_process).need for each in specs]
    budget = int(fits * max(need.awake_bytes for need in needs))
    options = FleetOptions(memory_budget=budget, model_slice_s=slice_s, max_model_wait_s=wait_s)
    return Fleet(specs, options, **facts)
