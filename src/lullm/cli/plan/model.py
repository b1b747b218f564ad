"""PlannedModel: a model's config, and its files if local, built without memory in an engine's way."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lullm.config.gguf.file import is_gguf, read_gguf
from lullm.config.gguf.mmproj.finding import AUTO
from lullm.config.json_file import given_path
from lullm.config.mistral.layout import CONFIG_FILE, PARAMS_FILE
from lullm.config.model import ModelConfig

if TYPE_CHECKING:
    from lullm.models.protocol import Model

_QUANTIZATIONS = ("int8", "int4")
_OWN_METHODS = {"lullm": "int4"}
_LONGEST_LEN = 4096


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """The model of a plan.

    Args:
        config: of the model, or of a worker's part of it.
        files: its folder or GGUF file; None: only the config is local.
        on_gpu: matrices are decoded, since no GPU kernel reads them quantized.
    """

    config: ModelConfig
    files: Path | None
    on_gpu: bool = False

    @property
    def ways(self) -> tuple[str | None, ...]:
        """The possible formats of the weights on a CPU; None: the stored one."""
        if self.config.foreign is not None:
            return (None,)
        return None, *(each for each in _QUANTIZATIONS if each != self.config.quantization)

    def held(self, quantization: str | None) -> str:
        """A word for the format of the matrices in memory."""
        return quantization or ("" if self.on_gpu else self._stored) or self.config.dtype

    @property
    def _stored(self) -> str:
        """The quantization of the checkpoint's matrices; empty: floating point."""
        config = self.config
        if self.files is not None and is_gguf(self.files):
            formats = {place.format for place in read_gguf(self.files).tensors.values()}
            return "+".join(sorted(each.name for each in formats if each.is_quantized))
        if config.encoding is not None:
            return config.quantization or _OWN_METHODS.get(config.encoding.method, config.encoding.method)
        return config.own_encoding or ""

    def built(self, quantization: str | None) -> "Model":
        """The model on the meta device: shapes without memory. Raises ModelLoadError: the files are damaged."""
        from lullm.weights.storage import choose_storage, foretell_storage

        model, encoding = self.plain(), self.config.encoding
        if not self.on_gpu:
            quantization = quantization or self.config.quantization
        if quantization is not None or self.on_gpu or self.files is not None:
            choose_storage(model, encoding, quantization, None if self.on_gpu else self.files)
        else:
            foretell_storage(model, encoding, self.config.own_encoding)
        return model

    def plain(self) -> "Model":
        """The same model with all matrices in floating point."""
        import torch

        from lullm.models.registry import build_model

        config = self.config
        return build_model(config, getattr(torch, config.dtype), min(config.max_position_embeddings, _LONGEST_LEN))

    def where_it_runs(self, device: str, num_workers: int) -> "PlannedModel":
        """The model with the states of an engine on this device."""
        from lullm.ops.state.chunks import with_chunks_of_use

        return self.part(with_chunks_of_use(self.config, device, self.config.dtype, num_workers))

    def part(self, config: ModelConfig) -> "PlannedModel":
        """A worker's part of it."""
        return replace(self, config=config)


def read_model(name: str, revision: str | None = None, mmproj: str = AUTO) -> PlannedModel:
    """Read the model of a name, of a folder with only a config.json, or of that file. Fetches no weights of a folder.

    `mmproj`: the option of that name.

    Raises:
        ModelLoadError: no such model, or the hub refuses its config.json.
    """
    from lullm.weights.folder import resolve_model
    from lullm.weights.reading.files import missing_files
    from lullm.weights.reading.head import with_own_head

    path = given_path(name)
    if path.name in (CONFIG_FILE, PARAMS_FILE):
        return PlannedModel(ModelConfig.from_folder(path.parent), None)
    files = resolve_model(name, revision, needs_weights=False, fetches_tower=mmproj == AUTO)
    config = with_own_head(ModelConfig.from_folder(files, mmproj=mmproj), files)
    has_weights = is_gguf(files) or not missing_files(files)
    return PlannedModel(config, files if has_weights else None)
