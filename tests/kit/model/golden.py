"""Tiny random models of transformers, the same weights in lullm, and logits of both; no engine."""

import copy
import dataclasses
import json
import random

import torch
from kit.model.renamed import RENAMED, renamed_class, renamed_of
from safetensors.torch import load_file, save_file

from lullm.arena.host import HostArena
from lullm.config.parallel.share import share_of
from lullm.kv.cache_group import cache_layout
from lullm.models.fallback.choice import read_model_config
from lullm.models.registry import build_model
from lullm.nn.context import StepContext
from lullm.ops.attention_layout import AttentionLayout
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.ops.state.layout import StateLayout
from lullm.types.layer_kind import SharedAttention
from lullm.types.parallel.placement import Axis
from lullm.types.parallel.stage import PipelineStage
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes

ALONE = Axis()
WHOLE = PipelineStage()
BLOCK_SIZE = 8
PROMPT_LEN = 90
SIZES = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 1,
}  # fmt: skip


def model_class(family):
    """transformers' class of a family's causal models."""
    return class_of(architecture_of(family))


def class_of(name):
    """transformers' class of an architecture."""
    import transformers

    if renamed_of(name) is not None:
        return renamed_class(name)
    if found := getattr(transformers, name, None):
        return found
    # A config class that transformers computes as Llama: files name an architecture of its own.
    config_class = getattr(transformers, name.replace("ForCausalLM", "Config"))
    return type(name, (transformers.LlamaForCausalLM,), {"config_class": config_class})


def architecture_of(family):
    """As `config.json` names it."""
    if family in RENAMED:
        return f"{family}{RENAMED[family].suffix}"
    return f"{family}LMHeadModel" if family in ("GPT2", "OpenAIGPT") else f"{family}ForCausalLM"


def random_model(family, options, seed=0):
    """A random transformers model whose activations are large enough for mistakes to show."""
    cls = model_class(family)
    # Models of this size need no care for their first values, which are replaced.
    options = {key: value for key, value in options.items() if value is not ...}
    model = cls(cls.config_class(**copy.deepcopy(options))).eval()  # a config writes into its objects
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        learned = ("correction_bias", "expert_bias", "layer_scalar")  # those that a checkpoint holds
        corrections = [item for item in model.named_buffers() if item[0].endswith(learned)]
        for name, parameter in (*model.named_parameters(), *corrections):
            # Some families' norms add 1 themselves.
            adds_one = family in ("Gemma", "Gemma2", "Gemma3", "Nemotron", "RecurrentGemma", "VaultGemma") or (
                family.startswith(("Qwen3Next", "Qwen3_5")) and "linear_attn" not in name
            )
            is_factor = any(part in name for part in ("norm", ".ln_", "scalar", "router.scale", "per_expert_scale"))
            is_factor = is_factor and not adds_one and not name.endswith("bias")
            parameter.normal_(1.0 if is_factor else 0.0, 0.15, generator=generator)
    return model


def save(model, folder):
    """As people download it. transformers cuts the filters of OLMo Hybrid into thirds, whatever their sizes are."""
    model.save_pretrained(folder)
    nets = {name: net for name, net in model.named_modules() if type(net).__name__ == "OlmoHybridGatedDeltaNet"}
    if nets:
        tensors = load_file(folder / "model.safetensors")
        for name, net in nets.items():
            parts = net.conv1d.weight.detach().split((net.key_dim, net.key_dim, net.value_dim))
            tensors |= {f"{name}.{part}_conv1d.weight": rows.clone() for part, rows in zip("qkv", parts, strict=True)}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def save_model(folder, family, options, seed=0):
    """A random model of some size (`SIZES`), saved as people download it."""
    model = random_model(family, SIZES | options, seed)
    save(model, folder)
    return model


def config_data(family, options):
    """The whole `config.json` of a family with these options, as people download it."""
    renamed = renamed_of(architecture_of(family))
    data = model_class(family).config_class(**options).to_dict() | {"architectures": [architecture_of(family)]}
    return data if renamed is None else renamed.config(data, architecture_of(family))


def write_config(folder, family, options):
    """A `config.json` with these keys only, in place of the one that transformers has written."""
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture_of(family)], **options}))


def load_model(folder, dtype=torch.float32, max_model_len=128, axis=ALONE, deals_experts=False, stage=WHOLE):
    """`axis`: of a worker that shares the model with others. `stage`: of one that has some of the layers."""
    config = dataclasses.replace(read_model_config(folder, "lullm"), stage=stage)
    config = share_of(config, axis, deals_experts)
    model = build_model(config, dtype, max_model_len)
    assert all(parameter.is_meta for parameter in model.parameters())
    arena = HostArena("weights", weights_bytes(model))
    materialize(model, arena)
    assert arena.used_bytes <= weights_bytes(model)
    load_weights(model, folder, TORCH_CPU_OPS)
    return model


class PagedRun:
    """Sequences of one model, computed in steps through scattered blocks of a cache that starts as NaN."""

    def __init__(self, model, ops, num_seqs, max_len=128, dtype=torch.float32):
        self.model, self.ops = model, ops
        config = model.config
        heads = [config.kv_heads(layer) for layer in range(len(config.layer_kinds))]
        slot_bytes = config.num_cache_sides * BLOCK_SIZE * max(own.size for own in heads) * dtype.itemsize
        stages = config.kinds_of_stages, config.stage.rank
        self.groups = cache_layout(config.layer_kinds, slot_bytes, *stages).groups
        blocks_each = max(-(-max_len // BLOCK_SIZE), *(group.num_state_blocks for group in self.groups))
        ids = list(range(num_seqs * blocks_each + 1))
        random.Random(3).shuffle(ids)
        self.block_tables = torch.tensor(ids[: num_seqs * blocks_each]).view(num_seqs, blocks_each)
        self.kv_caches = []
        for kind, own in zip(config.layer_kinds, heads, strict=True):
            shape = (config.num_cache_sides, len(ids), BLOCK_SIZE, own.num_heads, own.head_dim)
            sides = list(torch.full(shape, float("nan"), dtype=dtype))
            is_shared = isinstance(kind, SharedAttention)
            self.kv_caches.append(self.kv_caches[kind.layer] if is_shared else LayerCache(sides[0], sides[-1]))
        self.computed = [0] * num_seqs

    @torch.inference_mode()
    def step(self, work, stream=None):
        """Compute `work`, pairs of (sequence, tokens); the logits of all rows `[T, V]`, or what the next stage gets."""
        positions, slots, contexts = [], [], []
        for seq, token_ids in work:
            span = range(self.computed[seq], self.computed[seq] + len(token_ids))
            positions += span
            slots += [int(self.block_tables[seq, p // BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE for p in span]
            self.computed[seq] += len(token_ids)
            contexts.append(self.computed[seq])
        layout = AttentionLayout(
            query_lens=[len(token_ids) for _, token_ids in work],
            context_lens=contexts,
            block_tables=self.block_tables[[seq for seq, _ in work]],
            slot_mapping=torch.tensor(slots),
            block_size=BLOCK_SIZE,
        )
        token_ids = torch.tensor([token_id for _, ids in work for token_id in ids])
        layouts = [
            DeviceLayout.of(dataclasses.replace(layout, window=group.window, is_chunked=group.is_chunked))
            for group in self.groups
        ]
        prepared = [
            self.ops.prepare_attention(layout) if group.keeps_tokens else StateLayout(layout)
            for group, layout in zip(self.groups, layouts, strict=True)
        ]
        context = StepContext(torch.tensor(positions), prepared, self.kv_caches, self.ops, stream=stream)
        hidden = self.model(token_ids, context)
        config = self.model.config
        assert hidden.shape == (len(token_ids), config.hidden_size if config.stage.is_last else config.stream_size)
        return self.model.compute_logits(hidden, self.ops) if config.stage.is_last else hidden


def prompt(seed, length=PROMPT_LEN):
    return random.Random(seed).choices(range(SIZES["vocab_size"]), k=length)


def golden_logits(model, token_ids):
    with torch.inference_mode():
        return model(torch.tensor([token_ids]), return_dict=True).logits[0]


def assert_close(actual, expected):
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
