"""ModelConfig: the part of a model's `config.json` that every family has, and the part of its own family.

Fields keep the JSON's own names where it has one. Keys that change the arithmetic and are not implemented are refused;
unknown ones are named in a warning (`family.keys`). Both spellings of the type of the weights are read: `torch_dtype`
and `dtype`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast, get_args

from lullm.config.decoder import DecoderConfig
from lullm.config.encoding.mlx import with_mlx_method
from lullm.config.encoding.modelopt import with_own_file
from lullm.config.encoding.scheme import CheckpointEncoding
from lullm.config.encoding.table import read_encoding
from lullm.config.family.keys import check_keys
from lullm.config.family.table import FAMILIES, family_of
from lullm.config.family.text_model import text_part
from lullm.config.field import MOST_VOCAB, Data, boolean, positive_int, shown, token_id_list
from lullm.config.gguf.architecture import config_data
from lullm.config.gguf.file import is_gguf, read_gguf
from lullm.config.gguf.mmproj.finding import AUTO
from lullm.config.gguf.mmproj.reading import read_mmproj
from lullm.config.hearing.hearing import HearingConfig
from lullm.config.hearing.reading import read_hearing
from lullm.config.json_file import overridden
from lullm.config.layer.encoder import EncoderConfig
from lullm.config.layer.heads import read_heads
from lullm.config.mistral.layout import config_path, read_config
from lullm.config.pooling.architecture import Labels, read_labels, split_architecture
from lullm.config.pooling.pooler import DenseLayers, PoolerConfig, TokenScore
from lullm.config.rope import MOST_POSITIONS
from lullm.config.vision.reading import TextFacts, read_vision
from lullm.config.vision.vision import VisionConfig
from lullm.errors import ConfigError, ModelLoadError
from lullm.log import get_logger
from lullm.types.layer_kind import EncoderOnlyAttention, FullAttention, KVHeads, LayerKind, SlidingWindow, attended_kind
from lullm.types.parallel.placement import Axis
from lullm.types.parallel.stage import PipelineStage
from lullm.types.vllm_argument import VLLM_MODEL_NAMES, VllmNames
from lullm.units import round_up

logger = get_logger(__name__)

ModelDType = Literal["float32", "bfloat16", "float16"]
_DTYPES = get_args(ModelDType)

FamilyConfig = DecoderConfig
"""The family parts; a family that does not fit the shared decoder adds its own type here. All say `widest_row`
and `attention_features`."""


@dataclass(frozen=True, slots=True)
class Share:
    """The worker and the model of a divided config. `whole`: the undivided config."""

    axis: Axis
    whole: "ModelConfig"

    def first(self, size: int, whole_size: int) -> int:
        """Where the worker's `size` of `whole_size` heads or elements begin. Several workers may have the same."""
        num_different = whole_size // size
        return self.axis.rank * num_different // self.axis.size * size


@dataclass(frozen=True, slots=True)
class ModelConfig(VllmNames):
    """The part of a `config.json` that lullm reads. Sizes in elements, lengths in tokens.

    Args:
        layer_kinds: the kinds of the layers by their state between steps, `family.kinds_per_layer` entries per layer.
        family: the part for the family's own file.
        generates: the model computes next tokens. If False, it has no head for them, or the user does not want them.
        labels: of a checkpoint with labels in place of that head.
        pooler: its results for whole sequences (`pooling.use`); None: none.
        encoding: the quantization of the checkpoint's matrices; None: none, or the family's own.
        own_encoding: `quant_method`, if it is the family's own.
        unknown_keys: unknown keys of the file.
        foreign: the whole file, for a model that transformers' code computes; None: lullm computes it.
        share: of a worker's part of a model (`config.parallel.share`), whose sizes these are; None: all of it.
        stage: which layers a worker has; the other fields are of all layers.
        vision: how it sees pictures; None: not at all, for the reason `no_vision`, empty for a model of text.
        hearing: how its decoder hears; None: not at all, for the reason `no_hearing`.
    """

    _vllm_names: ClassVar[Mapping[str, str]] = VLLM_MODEL_NAMES

    architecture: str
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    layer_kinds: tuple[LayerKind, ...]
    family: FamilyConfig
    tie_word_embeddings: bool = False
    dtype: ModelDType = "float32"
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    generates: bool = True
    labels: Labels | None = None
    pooler: PoolerConfig | None = None
    encoding: CheckpointEncoding | None = None
    own_encoding: str | None = None
    unknown_keys: tuple[str, ...] = field(default=(), compare=False)
    foreign: Mapping[str, Any] | None = field(default=None, compare=False)
    share: Share | None = None
    stage: PipelineStage = PipelineStage()
    vision: VisionConfig | None = None
    no_vision: str = field(default="", compare=False)
    hearing: HearingConfig | None = None
    no_hearing: str = field(default="", compare=False)

    @property
    def quantization(self) -> Literal[None, "int8"]:
        """The type that `lullm quantize` wrote the checkpoint for, if loading quantizes the rest to it."""
        return None if self.encoding is None else self.encoding.quantization

    @property
    def beside_ops(self) -> str:
        """The part of a step that torch's own functions compute, as a predicate of the model; empty: none."""
        if self.foreign is not None:
            return "is computed by transformers"
        if self.family.latent is not None:
            return "keeps latent vectors"
        if self.family.altup is not None:
            return "joins residual streams by torch"
        return "" if self.family.experts is None else self.family.experts.beside_ops

    @property
    def refused_caches(self) -> tuple[str, ...]:
        """Types of a quantized KV cache, by parts of their names, that cannot hold this model's cache."""
        if self.family.alibi_slopes:  # a position has 16 bits
            return "fp8", "int8"
        is_plain = self.foreign is None and self.family.latent is None and self.encoder is None
        return () if is_plain else ("fp8",)

    @property
    def stream_size(self) -> int:
        """Elements of a token between two layers, in all residual streams."""
        altup = self.family.altup
        return self.hidden_size * (1 if altup is None else altup.num_streams)

    @property
    def num_cache_sides(self) -> Literal[1, 2]:
        """Tensors of a layer-slot in the KV cache: keys and values, or latent vectors that are both."""
        return 2 if self.family.latent is None else 1

    @property
    def encoder(self) -> EncoderConfig | None:
        """What reads an input beside the prompt; None: nothing."""
        return self.family.encoder

    def num_encoder_slots(self, block_size: int) -> int:
        """The most places that an encoder's rows take in front of a sequence's tokens."""
        return 0 if self.encoder is None else round_up(self.encoder.max_rows, block_size)

    @property
    def has_attention(self) -> bool:
        """Whether some layer has heads, with keys and values of tokens; otherwise all have states or nothing."""
        kinds = FullAttention | SlidingWindow | EncoderOnlyAttention
        return any(isinstance(kind, kinds) for kind in self.layer_kinds)

    def kv_heads(self, layer: int) -> KVHeads:
        """The heads that a layer reads."""
        kind = attended_kind(self.layer_kinds, layer)
        heads = kind.heads if isinstance(kind, FullAttention | SlidingWindow) else None
        return heads or KVHeads(self.num_key_value_heads, self.head_dim)

    def query_heads(self, layer: int) -> int:
        """Query heads of a layer; for a recurrent layer, the model's."""
        return self.family.query_heads[layer] if self.family.query_heads else self.num_attention_heads

    def rotated_size(self, layer: int) -> int:
        """Elements of a head, or of its part, that the layer's rotary table is for."""
        latent = self.family.latent
        return self.kv_heads(layer).head_dim if latent is None else latent.rope_size

    @property
    def longest_len(self) -> int:
        """The largest `max_model_len`: the positions of the file, or the length that its ropes are stretched to."""
        reaches = [rope.reach(self.max_position_embeddings) for rope in self.family.ropes if rope is not None]
        return max([self.max_position_embeddings, *reaches])

    @property
    def head_dims(self) -> list[int]:
        """The sizes of heads that its layers have, ascending."""
        return sorted({self.kv_heads(layer).head_dim for layer in range(len(self.layer_kinds))})

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_kinds) // self.family.kinds_per_layer

    @property
    def layers(self) -> range:
        """The numbers of the layers that a worker has."""
        of_all = self.stage.layers_of_all
        return of_all[self.stage.rank] if of_all else range(self.num_hidden_layers)

    @property
    def kinds_of_stages(self) -> list[range]:
        """The entries of `layer_kinds` that each stage has."""
        num_each = self.family.kinds_per_layer
        of_all = self.stage.layers_of_all or [range(self.num_hidden_layers)]
        return [range(num_each * layers.start, num_each * layers.stop) for layers in of_all]

    @property
    def own_kinds(self) -> range:
        """The entries of `layer_kinds` that a worker has."""
        return self.kinds_of_stages[self.stage.rank]

    @property
    def text_facts(self) -> TextFacts:
        rotary_dim = self.family.rotary_dim(self.head_dim)
        return TextFacts(self.architecture, self.vocab_size, self.hidden_size, rotary_dim)

    @property
    def pooled_size(self) -> int:
        """Elements of a text's embedding, if the model gives any."""
        head = None if self.pooler is None else self.pooler.head
        return head.out_features if isinstance(head, DenseLayers) else self.hidden_size

    @property
    def has_lm_head(self) -> bool:
        """Whether logits of tokens are computed: to draw from, or to score by."""
        return self.generates or (self.pooler is not None and isinstance(self.pooler.head, TokenScore))

    @property
    def ties_head(self) -> bool:
        """Whether the head has no matrix of its own: it is the embedding, or there is none."""
        return self.tie_word_embeddings or not self.has_lm_head

    @classmethod
    def from_folder(
        cls, folder: Path, overrides: Mapping[str, Any] = MappingProxyType({}), mmproj: str = AUTO
    ) -> "ModelConfig":
        """Read `folder/config.json`, Mistral's params.json, or the header of a GGUF file if `folder` is one.

        Args:
            overrides: other values for its keys. mmproj: the file beside a GGUF file that reads pictures, see
                `find_mmproj`.

        Raises:
            ModelLoadError: no such file, not JSON, or a field is missing or invalid.
            ConfigError: one of the `overrides` is unknown.
        """
        if is_gguf(folder):
            file = read_gguf(folder)
            config = cls.from_dict(overridden(config_data(file), overrides))
            if config.family.encoder_only is not None:
                return config
            vision, no_vision = read_mmproj(file, config.text_facts, mmproj)
            return replace(config, vision=vision, no_vision=no_vision)
        try:
            data = read_config(folder)
        except FileNotFoundError:
            if (folder / "adapter_config.json").is_file():
                raise ModelLoadError(
                    f"{folder} holds an adapter (PEFT), not a model; give its base model, and the adapter as a "
                    "lora_request (`lullm run MODEL --lora PATH`)"
                ) from None
            raise ModelLoadError(
                f"{folder} has no config.json; a model folder holds config.json, tokenizer.json and *.safetensors"
            ) from None
        data = overridden(with_mlx_method(with_own_file(data, folder)), overrides)
        config = cls.from_dict(data)
        vision, no_vision = read_vision(data, folder, config.text_facts)
        if vision is not None and config.family.encoder_only is not None:
            raise ModelLoadError(
                "config.json: a model that reads pictures, and whose text model has no causal mask, is not supported; "
                "choose a checkpoint of the text model alone"
            )
        hearing, no_hearing = read_hearing(data, folder, config.architecture, config.vocab_size)
        config = replace(config, vision=vision, no_vision=no_vision, hearing=hearing, no_hearing=no_hearing)
        if unknown := overrides.keys() & config.unknown_keys:
            raise ConfigError(f"hf_overrides: nothing is known about {', '.join(sorted(unknown))}")
        if config.unknown_keys:
            path, names = config_path(folder), ", ".join(config.unknown_keys)
            logger.warning("%s: ignored, since nothing is known about them: %s", path, names)
        return config

    @classmethod
    def from_dict(cls, data: Data) -> "ModelConfig":
        """From the parsed `config.json`. Raises ModelLoadError as `from_folder` does."""
        data = text_part(data, _named_architecture(data))
        architecture, has_lm_head, labels = split_architecture(data["architectures"][0])
        if "text_config" in data and "num_hidden_layers" not in data:
            raise ModelLoadError(
                f"config.json: {architecture} reads more than text, which is not supported yet; choose a checkpoint of "
                "the text model alone"
            )
        family = family_of(architecture)
        unknown_keys = check_keys(data, architecture, family, FAMILIES.values())
        data = family.fill(data)
        heads, kv_heads, hidden_size, head_dim = read_heads(data)
        stated = data.get("quantization_config")
        encoding = read_encoding(stated, family.encodings)
        own_encoding = stated["quant_method"] if stated and family.encodings else None
        layer_kinds = family.layer_kinds(data)
        part = family.part(data, layer_kinds, head_dim)
        return cls(
            architecture=architecture,
            vocab_size=positive_int(data, "vocab_size", most=MOST_VOCAB),
            hidden_size=hidden_size,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=positive_int(data, "max_position_embeddings", most=MOST_POSITIONS),
            layer_kinds=layer_kinds,
            family=part,
            tie_word_embeddings=boolean(data, "tie_word_embeddings", False),
            dtype=read_dtype(data, "float32" if encoding is None and own_encoding is None else "bfloat16"),
            eos_token_ids=token_id_list(data.get("eos_token_id"), "config.json: eos_token_id"),
            bos_token_id=_bos_token_id(data),
            generates=has_lm_head and part.encoder_only is None,
            labels=None if labels is None else read_labels(data, labels),
            encoding=encoding,
            own_encoding=own_encoding,
            unknown_keys=unknown_keys,
        )


def _named_architecture(data: Data) -> str:
    names = data.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelLoadError('config.json names no architecture ("architectures": ["Qwen3ForCausalLM"])')
    return names[0]


def read_dtype(data: Data, default: ModelDType) -> ModelDType:
    """The type of the weights. Raises ModelLoadError."""
    dtype = data.get("dtype") or data.get("torch_dtype") or default
    if dtype not in _DTYPES:
        raise ModelLoadError(f"config.json: dtype {shown(dtype)} is not one of {', '.join(_DTYPES)}")
    return cast(ModelDType, dtype)


def _bos_token_id(data: Data) -> int | None:
    ids = token_id_list(data.get("bos_token_id"), "config.json: bos_token_id")
    return ids[0] if ids else None
