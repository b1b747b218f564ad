"""OpenedModel: the facts of a model's folder that an engine needs before it loads weights. Loads no torch.

The engine is built from it. So is the client of an engine in another process.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lullm.config.alignment import with_alignment
from lullm.config.engine import EngineConfig
from lullm.config.generation import GenerationDefaults, OutputRules
from lullm.config.gguf.file import is_gguf
from lullm.config.gguf.mmproj.finding import AUTO, NONE
from lullm.config.json_file import option_object
from lullm.config.model import ModelConfig
from lullm.config.option.pictures import parse_limits
from lullm.config.pooling.use import Use, with_use
from lullm.config.resolved import ResolvedConfig
from lullm.config.vision.setting import with_settings
from lullm.engine.input.processor import InputProcessor
from lullm.engine.start.draft import check_tokens, with_draft
from lullm.errors import ConfigError
from lullm.models.fallback.choice import read_model_config
from lullm.text.pair import has_pair_roles
from lullm.text.tokenizer import Tokenizer
from lullm.types.sampling_params import SamplingParams
from lullm.weights.folder import resolve_model


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """The folder of a model, and the contents of its small files.

    Attributes:
        config: resolved for the model.
        default_params: from its generation_config.json.
        stated_params: the names of those that it, or an option, sets.
        eos_token_ids: from all files.
        rules: of generation_config.json for outputs, if the model has an encoder.
    """

    folder: Path
    config: ResolvedConfig
    model_config: ModelConfig
    tokenizer: Tokenizer
    default_params: SamplingParams
    stated_params: frozenset[str]
    eos_token_ids: tuple[int, ...]
    rules: OutputRules = OutputRules()

    def input_processor(self) -> InputProcessor:
        """A new input processor, of an engine that runs with `config`."""
        return InputProcessor(self.config, self.model_config, self.tokenizer, self.eos_token_ids, self.rules)


def open_model(config: EngineConfig) -> OpenedModel:
    """Find and read the model of an engine. Blocking: a hub id may be downloaded.

    Raises:
        ModelLoadError, ConfigError: the folder or an option is wrong, or they do not fit each other.
    """
    folder = resolve_model(config.model, config.revision, fetches_tower=_wants_tower(config))
    _check_gguf(config, folder)
    overrides = option_object("hf_overrides", config.hf_overrides)
    model = read_model_config(folder, config.model_impl, overrides, config.mmproj)
    if settings := option_object("mm_processor_kwargs", config.mm_processor_kwargs):
        model = _with_settings(model, settings)
    resolved = with_draft(config, config.resolve(model), model)
    limits = resolved.limit_mm_per_prompt
    if model.vision is not None and not (limits.image or (limits.video and model.vision.video)):
        model = replace(model, vision=None, no_vision="limit_mm_per_prompt or language_model_only turns pictures off")
    if model.hearing is not None and not resolved.limit_mm_per_prompt.audio:
        model = replace(model, hearing=None, no_hearing="limit_mm_per_prompt or language_model_only turns sounds off")
    tokenizer_folder = resolve_model(config.tokenizer) if config.tokenizer else folder
    tokenizer = Tokenizer.from_folder(tokenizer_folder, config.chat_template)
    check_tokens(resolved, tokenizer)
    reads_pairs = has_pair_roles(tokenizer.chat_template)
    use = Use(config.runner, config.convert, tokenizer.backend.token_to_id, reads_pairs)
    model = with_use(model, folder, use, overrides)
    defaults = GenerationDefaults.from_folder(folder, config.generation_config, config.override_generation_config)
    eos_token_ids = defaults.eos_token_ids + model.eos_token_ids
    if tokenizer.eos_token_id is not None:
        eos_token_ids += (tokenizer.eos_token_id,)
    ends = tuple(dict.fromkeys(eos_token_ids))
    rules = OutputRules() if model.encoder is None else defaults.rules
    model = with_alignment(model, folder)
    return OpenedModel(folder, resolved, model, tokenizer, defaults.params, defaults.stated, ends, rules)


def _with_settings(model: ModelConfig, settings: dict[str, Any]) -> ModelConfig:
    if model.vision is None:
        reason = f": {model.no_vision}" * bool(model.no_vision)
        raise ConfigError(f"mm_processor_kwargs: this model takes text only{reason}; leave it out")
    return replace(model, vision=with_settings(model.vision, settings))


def _wants_tower(config: EngineConfig) -> bool:
    """Whether the hub's file that reads pictures is of use."""
    is_off = config.language_model_only or not parse_limits(config.limit_mm_per_prompt).image
    return config.mmproj == AUTO and not is_off


def _check_gguf(config: EngineConfig, model: Path) -> None:
    """Raises ConfigError: an option does not apply to GGUF files."""
    if is_gguf(model):
        for name, value in (("load_format", "safetensors"), ("model_impl", "transformers")):
            if getattr(config, name) == value:
                raise ConfigError(f"{name}={value!r} is not for GGUF files; leave it out, or take a model folder")
    elif config.mmproj not in (AUTO, NONE):
        raise ConfigError(
            f"mmproj={config.mmproj!r} belongs to a model in a GGUF file; {model} is a folder: leave it out"
        )
