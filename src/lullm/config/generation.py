"""Sampling defaults a model brings along in `generation_config.json`."""

from pathlib import Path

from lullm.config.field import boolean, token_id_list
from lullm.config.gguf.architecture import sampling_data
from lullm.config.gguf.file import is_gguf, read_gguf
from lullm.config.json_file import read_object
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

        A GGUF file may hold them itself.

        Raises:
            ModelLoadError: the file is not JSON or a value is out of range.
        """
        path = folder if is_gguf(folder) else folder / "generation_config.json"
        try:
            data = sampling_data(read_gguf(path)) if is_gguf(path) else read_object(path)
        except FileNotFoundError:
            return cls(SamplingParams())
        greedy = not boolean(data, "do_sample", True, file=str(path))
        eos_token_ids = token_id_list(data.get("eos_token_id"), f"{path}: eos_token_id")
        try:
            values = {name: data[name] for name in _FIELDS if data.get(name) is not None}
            if greedy:
                values["temperature"] = 0.0
            if data.get("max_new_tokens") is not None:
                values["max_tokens"] = data["max_new_tokens"]
            return cls(SamplingParams(**values), eos_token_ids)
        except InvalidRequestError as error:
            raise ModelLoadError(f"{path} cannot be used: {error}") from None
