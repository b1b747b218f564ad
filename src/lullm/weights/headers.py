"""Compares the headers of the weight files with the `config.json`, before a model is built from it.

Otherwise a wrong size in a config would first take its memory. The headers hold the shapes of all tensors; only they
are read here.
"""

import math
import re
from pathlib import Path

from torch import nn

from lullm.config.encoding.scheme import Float4Scheme, TableScheme
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import RecurrentState
from lullm.weights.reading.source import open_source
from lullm.weights.rule import is_beside_text

_LAYER = re.compile(
    r"(?:(?:^|\.)(?:layers|h|albert_layer_groups|(?:encoder|transformer)\.layer)|^(?:transformer\.)?blocks)\.(\d{1,9})\."
)


def check_headers(config: ModelConfig, folder: Path) -> None:
    """Compare number of layers and shapes of the large matrices. Milliseconds per file.

    The loader reports missing tensors, and tensors that no model of this family has.

    Raises:
        ModelLoadError: a file is missing or damaged, or a size of the config differs from the tensors; the message
            names the keys of the config, each with one tensor.
    """
    shapes = open_source(folder).shapes()
    faults = _wrong_layers(config, shapes) or _wrong_sizes(config, shapes)
    if faults:
        lines = "\n  ".join(faults)
        raise ModelLoadError(f"the weights in {folder} do not fit its config:\n  {lines}")


def check_num_weights(model: nn.Module, folder: Path) -> None:
    """The same for a model whose sizes have other names: it must not have more parameters than the files.

    Raises:
        ModelLoadError: as `check_headers`; the message has both numbers.
    """
    num_stored = sum(map(math.prod, open_source(folder).shapes().values()))
    num_wanted = sum(parameter.numel() for parameter in model.parameters())
    if num_wanted > num_stored:
        raise ModelLoadError(
            f"the weights in {folder} do not fit its config: by config.json the model has {num_wanted} numbers, and "
            f"the files hold {num_stored}; a size is wrong, or a file is missing"
        )


def _wrong_layers(config: ModelConfig, shapes: dict[str, list[int]]) -> list[str]:
    stored = {int(match[1]) for name in shapes if (match := _LAYER.search(name))}
    encoder, key, num_layers = config.family.encoder_only, "num_hidden_layers", config.num_hidden_layers
    if encoder is not None and encoder.num_groups:
        key, num_layers = "num_hidden_groups", encoder.num_groups
    num_stored = len(stored.intersection(range(num_layers)))
    if num_stored == num_layers:
        return []  # the loader reports extra layers
    return [f"{key} is {num_layers}, and the files hold {num_stored} of these layers"]


_Sizes = dict[str, tuple[tuple[str, int], ...]]
"""Sizes of matrices by the names of their layers: the config's keys of their rows and columns, with the values."""


def _stated_sizes(config: ModelConfig, layer: int) -> _Sizes:
    """The sizes of a layer's matrices, and of those outside all layers."""
    family, heads = config.family, config.kv_heads(layer)
    head_dim = config.head_dim if family.alibi_slopes else heads.head_dim  # cached keys hold their positions, too
    hidden = ("hidden_size", config.hidden_size)
    size = family.embedding_size
    embedding = hidden if size is None else ("word_embed_proj_dim", size)
    vocab = ("vocab_size", config.vocab_size)
    inner = ("intermediate_size", family.inner_size(layer))
    num_heads = config.query_heads(layer)
    queries = outputs = ("num_attention_heads x head_dim", num_heads * head_dim)
    if (latent := family.latent) is not None:
        queries = ("num_attention_heads x (qk_nope_head_dim + qk_rope_head_dim)", num_heads * latent.query_size)
        outputs = ("num_attention_heads x v_head_dim", num_heads * latent.value_size)
    keys = ("num_key_value_heads x head_dim", heads.num_heads * head_dim)
    gated = ("2 x num_attention_heads x head_dim", 2 * num_heads * head_dim)
    fused = num_heads + 2 * heads.num_heads
    all_heads = ("(num_attention_heads + 2 x num_key_value_heads) x head_dim", fused * head_dim)
    stated: _Sizes = {
        "embed_tokens": (vocab, embedding),
        "q_proj": (gated if family.output_gate is not None and not family.output_gate.is_apart else queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "qkv_proj": (all_heads, hidden),
        "o_proj": (hidden, outputs),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "gate_up_proj": (("2 x intermediate_size", 2 * inner[1]), hidden),
        "down_proj": (hidden, inner),
    }
    if (encoder := family.encoder_only) is not None:
        embedding = hidden if size is None else ("embedding_size", size)
        stated["word_embeddings"] = (vocab, embedding)
        if encoder.num_positions:  # a table of no use may be left of a training
            stated["position_embeddings"] = (("max_position_embeddings", encoder.num_positions), embedding)
        stated |= {"query": (queries, hidden), "key": (keys, hidden), "value": (keys, hidden)}
    if (inputs := family.layer_inputs) is not None:
        width = ("num_hidden_layers x hidden_size_per_layer_input", config.num_hidden_layers * inputs.size)
        stated["embed_tokens_per_layer"] = (("vocab_size_per_layer_input", inputs.vocab_size), width)
        stated["per_layer_model_projection"] = (width, hidden)
    if not config.tie_word_embeddings:  # a tied head is not read
        stated["lm_head"] = (vocab, embedding)
    return stated


_OF_OWN_SIZES = (
    ".experts.", ".linear_attn.", ".shared_expert", ".shared_mlp.", ".shared_transformer.", ".self_attn.gate_proj.",
)  # fmt: skip
"""Parts of names of matrices with other sizes, which the loader compares."""


def _wrong_sizes(config: ModelConfig, shapes: dict[str, list[int]]) -> list[str]:
    stated: dict[int, _Sizes] = {}
    faults: dict[str, str] = {}  # by fault: a wrong hidden_size is in every matrix
    for name, shape in sorted(shapes.items()):
        *_, layer, last = ("", *name.split("."))
        match = _LAYER.search(name)
        number = min(int(match[1]), len(config.layer_kinds) - 1) if match else 0
        if number not in stated:
            stated[number] = _stated_sizes(config, number)
        sizes = stated[number].get(layer, ()) if last == "weight" else ()
        kind = config.layer_kinds[min(number * config.family.kinds_per_layer, len(config.layer_kinds) - 1)]
        is_own = any(part in name for part in _OF_OWN_SIZES)
        is_own |= isinstance(kind, RecurrentState) and ".self_attn." in name  # a mixer of another kind
        if is_own or is_beside_text(name) or sizes and _is_packed(config, name):
            sizes = ()
        if sizes and shape != [size for _, size in sizes]:
            is_matrix = len(shape) == len(sizes)
            wrong = [key for side, (key, size) in enumerate(sizes) if not is_matrix or shape[side] != size]
            by = " and ".join(wrong)
            faults.setdefault(by, f"{name} has shape {shape}; by {by} it is {[size for _, size in sizes]}")
    return list(faults.values())


def _is_packed(config: ModelConfig, name: str) -> bool:
    """Whether the tensor of this name may hold several numbers in a byte or a word."""
    if config.encoding is None or (scheme := config.encoding.scheme_of(name.removesuffix(".weight"))) is None:
        return False
    return config.encoding.method == "mlx" or isinstance(scheme, Float4Scheme | TableScheme)
