"""Sampling defaults a model brings along in `generation_config.json`."""

import json
from pathlib import Path
from typing import Any

from lullm.config.field import token_id_list
from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.types.sampling_params import SamplingParams

_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class GenerationDefaults:
    """The defaults: `params` for requests that set nothing, `eos_token_ids` besides the config's own.

    `"do_sample": false`, written out, means greedy.
    """

    def __init__(self, params: SamplingParams, eos_token_ids: tuple[int, ...] = ()):
        self.params = params
        self.eos_token_ids = eos_token_ids

    @classmethod
    def from_folder(cls, folder: Path) -> "GenerationDefaults":
        """Read `folder/generation_config.json`; a missing file gives lullm's own defaults.

        Raises:
            ModelLoadError: the file is not JSON or a value is out of range.
        """
        path = folder / "generation_config.json"
        if not path.exists():
            return cls(SamplingParams())
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            values = {name: data[name] for name in _FIELDS if data.get(name) is not None}
            if data.get("do_sample") is False:
                values["temperature"] = 0.0
            if data.get("max_new_tokens") is not None:
                values["max_tokens"] = data["max_new_tokens"]
            return cls(SamplingParams(**values), token_id_list(data.get("eos_token_id"), f"{path}: eos_token_id"))
        except (OSError, ValueError, AttributeError, RecursionError, InvalidRequestError) as error:
            raise ModelLoadError(f"{path} cannot be used: {error}") from None
