"""Sampling defaults: a model's own, of `generation_config.json`, and other programs' for values that it leaves open.

vLLM and OpenAI then draw from the whole distribution, as their clients expect. Ollama and llama.cpp do not, and neither
do commands for a person at a terminal: small models write noise from tokens far below the best.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lullm.config.field import LARGEST_ID, shown, token_id_list
from lullm.config.gguf.architecture import sampling_data
from lullm.config.gguf.file import is_gguf, read_gguf
from lullm.config.json_file import given_path, option_object, optional_object, read_object
from lullm.errors import ConfigError, InvalidRequestError, ModelLoadError
from lullm.log import get_logger
from lullm.types.sampling_params import SamplingParams

logger = get_logger(__name__)

_PARAMS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    "max_new_tokens": "max_tokens",
}
"""The file's defaults that count, as in vLLM, and their names in requests."""

_ID_KEYS = ("suppress_tokens", "begin_suppress_tokens", "decoder_start_token_id", "forced_bos_token_id")
_TIME_KEYS = ("no_timestamps_token_id", "max_initial_timestamp_index")

OLLAMA = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
LLAMA_CPP = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""Each program's own; `run`, `chat` and the server's page also use llama.cpp's."""

_VLLM = {name: getattr(SamplingParams(), name) for name in _PARAMS.values() if name != "max_tokens"}


@dataclass(frozen=True, slots=True)
class OutputRules:
    """What a generation_config.json says of the outputs of a model with an encoder, as transformers reads it.

    Args:
        suppressed_ids, begin_suppressed_ids: tokens that are forbidden, anywhere and as the first of an output.
        start_ids, forced_ids: with which the decoder begins, if a request names nothing.
        no_timestamps_id, max_initial_timestamp: see `TimestampRules`; None: not stated.
    """

    suppressed_ids: tuple[int, ...] = ()
    begin_suppressed_ids: tuple[int, ...] = ()
    start_ids: tuple[int, ...] = ()
    forced_ids: tuple[int, ...] = ()
    no_timestamps_id: int | None = field(default=None, kw_only=True)
    max_initial_timestamp: int | None = field(default=None, kw_only=True)

    def starts(self, stated: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens with which a decoder begins. `stated`: by config.json, the start and maybe a forced one."""
        return (self.start_ids or stated[:1]) + (self.forced_ids or stated[1:])


class GenerationDefaults:
    """The defaults: `params` for requests that set nothing, `eos_token_ids` besides the config's own.

    `rules`: of models with an encoder.

    `stated` names those of `params` that the model or an option has set; `generation_config="vllm"` sets all that draw.
    `"do_sample": false`, written out, means greedy.
    """

    def __init__(self, stated: dict[str, Any], eos_token_ids: tuple[int, ...] = (), rules: "OutputRules | None" = None):
        self.params = SamplingParams(**stated)
        self.stated = frozenset(stated)
        self.eos_token_ids = eos_token_ids
        self.rules = rules or OutputRules()

    @classmethod
    def from_folder(cls, folder: Path, source: str = "auto", override: str | None = None) -> "GenerationDefaults":
        """Read `folder/generation_config.json`; a missing file gives lullm's own defaults.

        A GGUF file may hold them itself. A value that no request could have ("top_p": 0) is skipped with a warning.

        Args:
            source, override: the options `generation_config` and `override_generation_config`. They do not change the
                model's own end tokens.

        Raises:
            ModelLoadError: the file is not a JSON object, or its end tokens are no token ids; or the folder that
                `source` names has no such file.
        """
        path = folder if is_gguf(folder) else folder / "generation_config.json"
        data = sampling_data(read_gguf(path)) if is_gguf(path) else optional_object(path)
        eos_token_ids = token_id_list(data.get("eos_token_id"), f"{path}: eos_token_id")
        if source not in ("auto", "vllm"):
            path = given_path(source) / "generation_config.json"
        if source != "auto":
            data = {} if source == "vllm" else _object_of_folder(path)
        stated = _VLLM if source == "vllm" else _stated(data, path)
        ids = [token_id_list(data.get(name), f"{path}: {name}") for name in _ID_KEYS]
        first, latest = (_index(data, name, path) for name in _TIME_KEYS)
        rules = OutputRules(*ids, no_timestamps_id=first, max_initial_timestamp=latest)
        return cls(stated | parse_override(override), eos_token_ids, rules)


def left_open(defaults: dict[str, Any], stated: frozenset[str]) -> dict[str, Any]:
    """The program's `defaults` for parameters that the model leaves open."""
    return {name: value for name, value in defaults.items() if name not in stated}


def _stated(data: dict[str, Any], path: Path) -> dict[str, Any]:
    values = {param: data[name] for name, param in _PARAMS.items() if _is_usable(data.get(name), param, path)}
    if data.get("do_sample") is False:
        values["temperature"] = 0.0
    return values


def _index(data: dict[str, Any], name: str, path: Path) -> int | None:
    value = data.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_ID):
        return value
    raise ModelLoadError(f"{path}: {name} must be an integer from 0, not {shown(value)}")


def parse_override(text: str | None) -> dict[str, Any]:
    """The sampling parameters of `override_generation_config`. Raises ConfigError."""
    data = option_object("override_generation_config", text)
    if unknown := sorted(data.keys() - _PARAMS.keys()):
        known = ", ".join(f'"{name}"' for name in _PARAMS)
        raise ConfigError(f"override_generation_config has some of {known}, not {', '.join(unknown)}")
    values = {_PARAMS[name]: value for name, value in data.items()}
    try:
        SamplingParams(**values)
    except InvalidRequestError as error:
        raise ConfigError(f"override_generation_config: {error}") from None
    return values


def _object_of_folder(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        raise ModelLoadError(f"generation_config: there is no {path}; 'auto' takes the model's") from None


def _is_usable(value: object, param: str, path: Path) -> bool:
    """Whether the file has this default, with a value that a request could have."""
    if value is None:
        return False
    try:
        SamplingParams(**{param: value})  # type: ignore[arg-type]
    except InvalidRequestError as error:
        logger.warning("%s: passed over, so that lullm's own default holds: %s", path, error)
        return False
    return True
