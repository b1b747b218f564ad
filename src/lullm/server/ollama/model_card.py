"""ModelCard: a model in the form of Ollama's API."""

import hashlib
import time
from pathlib import Path
from typing import Any

from lullm.server.context import ServerContext
from lullm.server.ollama.answer import timestamp
from lullm.server.openai.reply import reply_form_of
from lullm.types.sampling_params import SamplingParams

_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_PARAMETERS = {"repetition_penalty": "repeat_penalty"}
_NEVER_S = 100 * 365 * 86400.0
"""A model that is never unloaded expires in a hundred years, as in Ollama."""


def of_name(context: ServerContext, name: str | None) -> ServerContext:
    """The context of the model `name`, with or without Ollama's tag 'latest'. Raises ApiError 404: there is none."""
    if name is not None and context.house.owner(name) is None:
        name = name.removesuffix(":latest")
    return context.of(name)


class ModelCard:
    """The served model, under its name with a tag."""

    def __init__(self, context: ServerContext):
        self._context = context
        self._engine = context.engine

    @property
    def name(self) -> str:
        """The served name; Ollama's names have a tag."""
        name = self._context.model_name
        return name if ":" in name else f"{name}:latest"

    def listed(self) -> dict[str, Any]:
        """An entry of /api/tags."""
        return self._identity() | {"modified_at": timestamp(self._context.house.started_at)} | self._size()

    def running(self) -> dict[str, Any] | None:
        """An entry of /api/ps; None: the engine sleeps, and the model is not loaded."""
        if self._engine.sleep_state not in ("awake", "paused"):
            return None
        upcoming = self._engine.next_sleep
        size = self._size()
        on_device = {"size_vram": size.get("size", 0) if self._engine.config.device != "cpu" else 0}
        left_s = _NEVER_S if upcoming is None else min(upcoming[1], _NEVER_S)  # a date has no more than four digits
        expires_at = timestamp(time.time() + left_s)
        lasting = {"expires_at": expires_at, "context_length": self._engine.config.max_model_len}
        return self._identity() | size | on_device | lasting

    def shown(self) -> dict[str, Any]:
        """The answer of /api/show. `template` is Jinja's, not Go's."""
        template = self._engine.tokenizer.chat_template
        return {
            "modelfile": f"FROM {self.name}",
            "parameters": "\n".join(_parameters(self._engine.default_params)),
            "template": template.sources["default"] if template else "",
            "details": self._details(),
            "model_info": self._model_info(),
            "capabilities": self._capabilities(),
            "modified_at": timestamp(self._context.house.started_at),
        }

    def _identity(self) -> dict[str, Any]:
        # A digest of the model's name, not of its bytes, which take seconds to read.
        digest = hashlib.sha256(self._engine.config.model.encode()).hexdigest()
        return {"name": self.name, "model": self.name, "digest": digest, "details": self._details()}

    def _size(self) -> dict[str, int]:
        """The bytes of the weights' files, if they are in a folder or a file."""
        path, vision = Path(self._engine.config.model), self._engine.model_config.vision
        files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf")]
        tower = None if vision is None else vision.weights_file
        if tower is not None and tower not in files:
            files.append(tower)
        return {"size": sum(file.stat().st_size for file in files)} if files else {}

    def _details(self) -> dict[str, Any]:
        family = self._family()
        config, encoding = self._engine.config, self._engine.model_config.quantization
        is_gguf = config.model.endswith(".gguf")
        return {
            "parent_model": "",
            "format": "gguf" if is_gguf else "safetensors",
            "family": family,
            "families": [family],
            "parameter_size": "",
            "quantization_level": (config.quantization or encoding or _TYPES[config.dtype]).upper(),
        }

    def _family(self) -> str:
        return self._engine.model_config.architecture.partition("For")[0].lower()

    def _model_info(self) -> dict[str, Any]:
        model, family = self._engine.model_config, self._family()
        sizes = {
            "context_length": self._engine.config.max_model_len,
            "embedding_length": model.pooled_size,
            "block_count": model.num_hidden_layers,
            "attention.head_count": model.num_attention_heads,
            "attention.head_count_kv": model.num_key_value_heads,
            "vocab_size": model.vocab_size,
        }
        return {"general.architecture": family} | {f"{family}.{name}": size for name, size in sizes.items()}

    def _capabilities(self) -> list[str]:
        model, replies = self._engine.model_config, reply_form_of(self._engine)
        can = {
            "completion": model.generates,
            "embedding": model.pooler is not None,
            "vision": model.vision is not None,
            "tools": replies.calls is not None,
            "thinking": replies.thinking is not None,
        }
        return [name for name, yes in can.items() if yes]


def _parameters(params: SamplingParams) -> list[str]:
    """The model's own defaults, a line each."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    default = SamplingParams()
    changed = [name for name in names if getattr(params, name) != getattr(default, name)]
    return [f"{_PARAMETERS.get(name, name):<30} {getattr(params, name):g}" for name in changed]
