"""Family: the rules for the `config.json` of one architecture, as data."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from lullm.config.decoder import DecoderConfig
from lullm.config.family.layer_kinds import Kinds, full_attention
from lullm.config.field import Data

NO_WINDOW: Data = {"use_sliding_window": False}
"""Fixed for families without windows. transformers' models have none, whatever the value of `sliding_window`."""
UNUSED_WINDOW = frozenset({"sliding_window", "max_window_layers"})

Read = Callable[[Data, Kinds, int], DecoderConfig]
"""(data, kinds of the layers, head_dim) -> the family's part. Raises ModelLoadError."""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture's keys beside the common ones (`keys.COMMON_READS`, `COMMON_FIXED`, `COMMON_IGNORES`).

    `tests/models/test_config_keys.py` compares every field of transformers' config class with these declarations.

    Args:
        read: see `Read`.
        defaults: values of missing keys, as in transformers' config class.
        reads: keys that change the result, and are implemented.
        fixed: keys that change the result, with their only implemented value; null means that value, too.
        ignores: keys that change nothing in inference.
        aliases: the architecture's own names of common keys.
        layer_kinds: data -> the kind of each layer. Raises ModelLoadError. Without windows, `fixed` and `ignores` have
            their keys.
        derive: data -> data with common keys computed from the family's own. Raises ModelLoadError.
        always: fields of the family's part with the same value for every file.
        encodings: values of `quant_method` in `quantization_config` that the family decodes itself.
    """

    read: Read
    defaults: Mapping[str, Any] = field(default_factory=dict)
    reads: Set[str] = frozenset()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    ignores: Set[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)
    layer_kinds: Callable[[Data], Kinds] = full_attention
    derive: Callable[[Data], Data] = dict
    always: Mapping[str, Any] = field(default_factory=dict)
    encodings: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.layer_kinds is full_attention:
            object.__setattr__(self, "fixed", NO_WINDOW | dict(self.fixed))
            object.__setattr__(self, "ignores", UNUSED_WINDOW | self.ignores)

    def part(self, data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
        """The family's part of a file. Raises ModelLoadError."""
        return replace(self.read(data, kinds, head_dim), **self.always)

    def fill(self, data: Data) -> Data:
        """The data without ignored keys, with defaults and derived keys, under the common names.

        A null counts as missing, except if it means "none" (`NULL_IS_NONE`). Raises ModelLoadError: `derive` does.
        """
        read: Data = {}
        for name, value in data.items():
            key = self.aliases.get(name, name)
            if name not in self.ignores and (value is not None or key not in read):
                read[key] = value
        # After the file's own names: otherwise the default of `intermediate_size` would replace LFM2's `block_ff_dim`.
        for name, value in self.defaults.items():
            key = self.aliases.get(name, name)
            if read.get(key) is None and not (key in read and key in NULL_IS_NONE):
                read[key] = value
        return self.derive(read)


NULL_IS_NONE = frozenset(
    {
        "sliding_window", "attention_chunk_size", "mamba_d_ssm", "attn_logit_softcapping", "final_logit_softcapping",
        "q_lora_rank", "scale_depth", "dim_model_base", "num_key_value_heads",
    }
)  # fmt: skip
"""Keys for which null is a value."""
