"""transformers' model of a published file at toy size, saved under the names that the repository has."""

import copy
import re

import torch
from safetensors.torch import load_file, save_file

from kit.model.golden import class_of
from kit.model.renamed import renamed_of
from lullm.config.pooling.architecture import split_architecture

READ_AS = {
    "moonshotai/Kimi-K2-Instruct": {"model_type": "deepseek_v3"},
    "microsoft/Phi-3-mini-128k-instruct, first revision": {
        "rope_scaling": {"long_factor": ..., "short_factor": ..., "type": "longrope",
                         "original_max_position_embeddings": 16},
    },
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": {"tie_word_embeddings": False},
}  # fmt: skip
"""What transformers 5 must be told to read a file as its repository means it."""
TEXT_ALONE = {"google/gemma-3n-E2B-it": "Gemma3nForCausalLM"}
"""Whose tower needs a library that is not here: transformers' class of the text model."""
LEARNED = ("correction_bias", "expert_bias")
"""Buffers that a checkpoint holds."""


def reference_model(name, small):
    """Random, with activations large enough for mistakes to show."""
    import transformers

    data = copy.deepcopy({key: value for key, value in small.items() if key != "quantization_config"})
    for key, value in READ_AS.get(name, {}).items():
        given = value if not isinstance(value, dict) else {
            inner: data[key][inner] if stated is ... else stated for inner, stated in value.items()
        }  # fmt: skip
        data[key] = given
    if name in TEXT_ALONE:
        data = data["text_config"] | {"architectures": [TEXT_ALONE[name]]}
    architecture = split_architecture(data["architectures"][0]).base
    if (renamed := renamed_of(architecture)) is None:
        config = transformers.CONFIG_MAPPING[data["model_type"]].from_dict(data)
    else:
        config = class_of(architecture).config_class.from_dict(renamed.options(data))
    model = class_of(architecture)._from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    learned = [item for item in model.named_buffers() if item[0].endswith(LEARNED)]
    with torch.no_grad():
        for key, parameter in (*model.named_parameters(), *learned):
            is_factor = parameter.ndim == 1 and not key.endswith("bias")  # some norms start at 0, and add 1
            mean = float(parameter.float().mean()) if is_factor else 0.0
            parameter.normal_(mean, 0.03 if key.endswith("bias") else 0.15, generator=generator)
    return model


def save_as_published(model, name, folder):
    """With what repositories hold beside the weights: masks, frequencies, layers that draft tokens."""
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "model.safetensors"
    if name in AS_PUBLISHED:
        save_file(AS_PUBLISHED[name](load_file(path)), path, {"format": "pt"})


def _without(prefix):
    def rename(tensors):
        found = {key.removeprefix(prefix): value for key, value in tensors.items()}
        assert found.keys() != tensors.keys()
        return found

    return rename


def _beside(pattern, **others):
    """Each match of `pattern` has others beside it, which say nothing to a reader."""

    def add(tensors):
        places = {match[0] for key in tensors if (match := re.match(pattern, key))}
        assert places
        return tensors | {f"{place}.{name}": value.clone() for place in places for name, value in others.items()}

    return add


def _with_draft_layer(tensors):
    """A layer behind the last one, with its own embedding."""
    last = max(int(match[1]) for key in tensors if (match := re.match(r"model\.layers\.(\d+)\.", key)))
    own = {key: value for key, value in tensors.items() if key.startswith(f"model.layers.{last}.")}
    draft = {key.replace(f".{last}.", f".{last + 1}.", 1): value.clone() for key, value in own.items()}
    first = f"model.layers.{last + 1}."
    return tensors | draft | {f"{first}eh_proj.weight": torch.ones(64, 128), f"{first}enorm.weight": torch.ones(64)}


def _of_gpt2(tensors):
    short = _without("transformer.")({key: value for key, value in tensors.items() if key != "lm_head.weight"})
    return _beside(r"h\.\d+\.attn", bias=torch.ones(1, 1, 128, 128))(short)


def _with_towers(tensors):
    """The text model under its name in a model of more than text, and something of what reads the rest."""
    text = {key.replace("model.", "model.language_model.", 1): value for key, value in tensors.items()}
    towers = ("audio_tower.conformer.0.norm", "vision_tower.timm_model.conv_stem.conv", "embed_audio.embedding")
    return text | {f"model.{name}.weight": torch.ones(4) for name in towers}


_MASKS = {"bias": torch.ones(1, 1, 64, 64, dtype=torch.bool), "masked_bias": torch.tensor(-1e9)}
AS_PUBLISHED = {
    "google/gemma-3n-E2B-it": _with_towers,
    "openai-community/gpt2": _of_gpt2,
    "distilbert/distilgpt2": _of_gpt2,
    "EleutherAI/gpt-j-6b": _beside(r"transformer\.h\.\d+\.attn", **_MASKS),
    "EleutherAI/pythia-160m": _beside(
        r"gpt_neox\.layers\.\d+\.attention", **_MASKS, **{"rotary_emb.inv_freq": torch.ones(2)}
    ),
    "meta-llama/Llama-2-7b-chat-hf": _beside(
        r"model\.layers\.\d+\.self_attn", **{"rotary_emb.inv_freq": torch.ones(8)}
    ),
    "huggyllama/llama-7b": _beside(r"model\.layers\.\d+\.self_attn", **{"rotary_emb.inv_freq": torch.ones(8)}),
    "Qwen/Qwen3-Embedding-0.6B": _without("model."),
    "unsloth/DeepSeek-V3-bf16": _with_draft_layer,
    "zai-org/GLM-4.5-Air": _with_draft_layer,
}
