"""PromptAdapterConfig: what the `adapter_config.json` of a prompt adapter says, checked once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lullm.config.field import shown
from lullm.config.lora.adapter import read_settings
from lullm.errors import ModelLoadError

_KINDS = ("PROMPT_TUNING", "P_TUNING")
"""PEFT stores the rows of both as they stand before a prompt, whatever made them."""
_REASONS = {
    "LORA": "a LoRA adapter is given as a lora_request (--lora-modules)",
    "PREFIX_TUNING": "it holds keys and values of every layer, not rows before the prompt",
    "CARTRIDGE": "it holds keys and values of every layer, not rows before the prompt",
    "MULTITASK_PROMPT_TUNING": "its rows depend on a task; save the rows of one task as PROMPT_TUNING",
    "CPT": "its rows are a sum that PEFT stores in parts; save the sum as PROMPT_TUNING",
}
_TASKS = (None, "CAUSAL_LM")
_READ = frozenset(("peft_type", "num_virtual_tokens", "token_dim", "task_type", "num_transformer_submodules"))
_WITHOUT_EFFECT = frozenset(
    ("base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version", "num_attention_heads",
     "num_layers", "prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_name_or_path", "tokenizer_kwargs",
     "encoder_reparameterization_type", "encoder_hidden_size", "encoder_num_layers", "encoder_dropout")
)  # fmt: skip
"""Keys about the training, or about the model that the adapter was trained with."""
_MOST_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class PromptAdapterConfig:
    """The settings of one prompt adapter. `num_rows`: before the prompt."""

    num_rows: int

    @classmethod
    def from_folder(cls, folder: Path) -> "PromptAdapterConfig":
        """Read the file of a PEFT folder.

        Raises:
            ModelLoadError: no such folder or file, a key is invalid, or it is another kind of adapter.
        """
        return read_settings(folder, "prompt", cls._from_dict)

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> "PromptAdapterConfig":
        kind = data.get("peft_type")
        if kind not in _KINDS:
            reason = f": {_REASONS[kind]}" if isinstance(kind, str) and kind in _REASONS else ""
            raise ModelLoadError(f"peft_type is {shown(kind)}, and prompt adapters are {' or '.join(_KINDS)}{reason}")
        if data.get("task_type") not in _TASKS:
            raise ModelLoadError(
                f"task_type is {shown(data['task_type'])}; lullm puts rows before prompts to continue (CAUSAL_LM)"
            )
        if data.get("num_transformer_submodules") not in (None, 1):
            raise ModelLoadError("num_transformer_submodules is not 1: the adapter is for an encoder and a decoder")
        for key in sorted(data.keys() - _READ - _WITHOUT_EFFECT):
            if data[key]:
                raise ModelLoadError(f"nothing is known about {shown(key)}, which is {shown(data[key])}")
        count = data.get("num_virtual_tokens")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_ROWS:
            raise ModelLoadError(f"num_virtual_tokens must be an integer from 1 to {_MOST_ROWS}, not {shown(count)}")
        return cls(count)
