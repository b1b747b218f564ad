"""Whole models against transformers: config, loading, every layer and the paged cache at once, in float32."""

import dataclasses
import random

import pytest
import torch

from lullm.arena.host import HostArena
from lullm.config.model import ModelConfig
from lullm.kv.cache_group import cache_layout
from lullm.models.registry import build_model
from lullm.nn.context import StepContext
from lullm.ops.attention_layout import AttentionLayout
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes

transformers = pytest.importorskip("transformers")

BLOCK_SIZE = 8
PROMPT_LEN = 90
SIZES = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
}  # fmt: skip
ROPE = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 10000.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0},
}  # fmt: skip
GEMMA = {"num_hidden_layers": 7, "sliding_window": 20}
MODELS = {
    "qwen3": ("Qwen3", {}),
    "qwen3 tied": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3 bias, no groups": ("Qwen3", {"attention_bias": True, "num_key_value_heads": 4}),
    "qwen3 one kv head, wide heads": ("Qwen3", {"num_key_value_heads": 1, "head_dim": 32}),
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama attention bias": ("Llama", {"attention_bias": True}),
    "llama all biases, one kv head": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "llama no groups, other eps": ("Llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-2}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral window": ("Mistral", {"sliding_window": 32}),
    "mistral window, tied": ("Mistral", {"sliding_window": 7, "tie_word_embeddings": True}),
    "qwen3 window": ("Qwen3", {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 0}),
    "qwen3 window in some layers": (
        "Qwen3",
        {
            "sliding_window": 20,
            "use_sliding_window": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma3": ("Gemma3", GEMMA),
    "gemma3 stretched, untied, other scale": (
        "Gemma3",
        GEMMA
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
            "tie_word_embeddings": False,
            "query_pre_attn_scalar": 40,
            "attention_bias": True,
        },
    ),
    "gemma3 capped logits, wide heads": (
        "Gemma3",
        GEMMA
        | {
            "final_logit_softcapping": 2.0,
            "head_dim": 256,
            "num_key_value_heads": 1,
            "sliding_window": 7,
        },
    ),
    "gemma2": ("Gemma2", {"sliding_window": 20, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0}),
    "gemma2 as it is released, one kv head": ("Gemma2", {"sliding_window": 7, "num_key_value_heads": 1}),
    "gemma2 without caps": ("Gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "qwen3 yarn": ("Qwen3", {"rope_parameters": ROPE["yarn"]}),
} | {f"llama {kind}": ("Llama", {"rope_parameters": parameters}) for kind, parameters in ROPE.items()}


def save_model(folder, family, options, seed=0):
    """A random transformers model whose activations are large enough for mistakes to show; its logits function."""
    kind = "Gemma3Text" if family == "Gemma3" else family
    config = getattr(transformers, f"{kind}Config")(**SIZES | options)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Gemma's norms add 1 themselves.
            parameter.normal_(1.0 if "norm" in name and "Gemma" not in family else 0.0, 0.15)
    model.save_pretrained(folder)
    return model


def load_model(folder, dtype=torch.float32, max_model_len=128):
    config = ModelConfig.from_folder(folder)
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
        blocks_each = -(-max_len // BLOCK_SIZE)
        ids = list(range(num_seqs * blocks_each + 1))
        random.Random(3).shuffle(ids)
        self.block_tables = torch.tensor(ids[: num_seqs * blocks_each]).view(num_seqs, blocks_each)
        config = model.config
        shape = (len(ids), BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
        self.kv_caches = [
            LayerCache(*torch.full((2, *shape), float("nan"), dtype=dtype)) for _ in range(config.num_hidden_layers)
        ]
        self.computed = [0] * num_seqs

    @torch.inference_mode()
    def step(self, work, input_embeddings=None):
        """Compute `work`, pairs of (sequence, tokens); the logits of all rows `[T, V]`."""
        positions, slots, contexts = [], [], []
        for seq, token_ids in work:
            span = range(self.computed[seq], self.computed[seq] + len(token_ids))
            positions += span
            slots += [int(self.block_tables[seq, p // BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE for p in span]
            self.computed[seq] += len(token_ids)
            contexts.append(self.computed[seq])
        groups = cache_layout(self.model.config.layer_kinds).groups
        layout = AttentionLayout(
            query_lens=[len(token_ids) for _, token_ids in work],
            context_lens=contexts,
            block_tables=self.block_tables[[seq for seq, _ in work]],
            slot_mapping=torch.tensor(slots),
            block_size=BLOCK_SIZE,
        )
        token_ids = torch.tensor([token_id for _, ids in work for token_id in ids])
        layouts = [DeviceLayout.of(dataclasses.replace(layout, window=group.window)) for group in groups]
        prepared = [self.ops.prepare_attention(layout) for layout in layouts]
        context = StepContext(torch.tensor(positions), prepared, self.kv_caches, self.ops, input_embeddings)
        hidden = self.model(token_ids, context)
        assert hidden.shape == (len(token_ids), self.model.config.hidden_size)
        return self.model.compute_logits(hidden, self.ops)


def prompt(seed, length=PROMPT_LEN):
    return random.Random(seed).choices(range(SIZES["vocab_size"]), k=length)


def golden_logits(model, token_ids):
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


def assert_close(actual, expected):
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("family", "options"), MODELS.values(), ids=MODELS.keys())
def test_logits(tmp_path, family, options):
    theirs = save_model(tmp_path, family, options)
    model = load_model(tmp_path)
    first, second, third = prompt(1), prompt(2), prompt(3, 20)
    expected = golden_logits(theirs, first)
    assert expected.std() > 0.3  # otherwise 1e-4 would prove little

    for ops in (TORCH_CPU_OPS, REFERENCE_OPS):
        assert_close(PagedRun(model, ops, 1).step([(0, first)]), expected)

    # Chunks, decodes and fresh prompts mixed in the same steps.
    run = PagedRun(model, TORCH_CPU_OPS, 3)
    parts = {0: [], 1: [], 2: []}
    steps = [
        {0: 50},
        {0: 7, 1: 30},
        {0: 1, 1: 1, 2: 20},
        {0: 31, 1: 40},
        {1: 2, 0: 1},
        {1: 17},
    ]
    tokens = {0: first, 1: second, 2: third}
    for step in steps:
        work = [(seq, tokens[seq][run.computed[seq] :][:count]) for seq, count in step.items()]
        logits = run.step(work).split([len(ids) for _, ids in work])
        for (seq, _), part in zip(work, logits, strict=True):
            parts[seq].append(part)
    assert run.computed == [90, 90, 20]
    for seq, token_ids in tokens.items():
        assert_close(torch.cat(parts[seq]), golden_logits(theirs, token_ids))


def test_greedy_decoding_equals_generate(tmp_path):
    theirs = save_model(tmp_path, "Qwen3", {"tie_word_embeddings": True}, seed=5)
    model = load_model(tmp_path)
    prompts = [prompt(seed, length) for seed, length in ((1, 5), (2, 30), (3, 17), (4, 1))]
    run = PagedRun(model, TORCH_CPU_OPS, 4)
    logits = run.step(list(enumerate(prompts)))
    ends = torch.tensor([len(p) for p in prompts]).cumsum(0) - 1
    outputs = [[int(token_id)] for token_id in logits[ends].argmax(-1)]
    for _ in range(23):
        logits = run.step([(seq, output[-1:]) for seq, output in enumerate(outputs)])
        for output, token_id in zip(outputs, logits.argmax(-1), strict=True):
            output.append(int(token_id))
    for token_ids, output in zip(prompts, outputs, strict=True):
        generated = theirs.generate(
            torch.tensor([token_ids]), attention_mask=torch.ones(1, len(token_ids)), do_sample=False,
            max_new_tokens=24, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert output == generated[0, len(token_ids) :].tolist()


def test_two_hundred_tokens_in_a_window_of_thirty_two(tmp_path):
    theirs = save_model(tmp_path, "Mistral", {"sliding_window": 32, "max_position_embeddings": 256})
    model = load_model(tmp_path, max_model_len=256)
    token_ids = prompt(1, 200)
    expected = golden_logits(theirs, token_ids)
    unlimited = save_model(tmp_path / "unlimited", "Mistral", {"sliding_window": None, "max_position_embeddings": 256})
    assert (expected - golden_logits(unlimited, token_ids)).abs().max() > 0.1
    for chunk in (1, 7, 64, 200):
        run = PagedRun(model, TORCH_CPU_OPS, 1, max_len=200)
        parts = [run.step([(0, token_ids[first : first + chunk])]) for first in range(0, 200, chunk)]
        assert_close(torch.cat(parts), expected)


def test_bfloat16_is_as_near_as_transformers(tmp_path):
    theirs = save_model(tmp_path, "Qwen3", {})
    model = load_model(tmp_path, torch.bfloat16)
    truth = golden_logits(theirs, prompt(1))
    ours = PagedRun(model, TORCH_CPU_OPS, 1, dtype=torch.bfloat16).step([(0, prompt(1))])
    their_error = (golden_logits(theirs.bfloat16(), prompt(1)).float() - truth).abs().mean()
    assert ours.dtype == torch.float32
    assert (ours - truth).abs().mean() < 1.2 * their_error


def test_dynamic_rope_beyond_the_trained_length(tmp_path):
    """All positions are rotated as transformers rotates them in a sequence of `max_model_len` tokens."""
    theirs = save_model(tmp_path, "Llama", {"rope_parameters": ROPE["dynamic"], "max_position_embeddings": 32})
    model = load_model(tmp_path, max_model_len=PROMPT_LEN)
    run = PagedRun(model, TORCH_CPU_OPS, 1)
    token_ids = prompt(1)
    logits = torch.cat([run.step([(0, token_ids[:40])]), run.step([(0, token_ids[40:])])])
    assert_close(logits, golden_logits(theirs, token_ids))


def test_input_embeddings_replace_the_lookup(tmp_path):
    """As transformers' `inputs_embeds`: they are taken as they are, scaled already; the token ids are not read."""
    theirs = save_model(tmp_path, "Gemma3", GEMMA)
    model = load_model(tmp_path)
    embeddings = torch.randn(30, SIZES["hidden_size"], generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = theirs(inputs_embeds=embeddings[None]).logits[0]
    run = PagedRun(model, TORCH_CPU_OPS, 1)
    given = embeddings.clone()
    assert_close(run.step([(0, [0] * 30)], given), expected)
    assert torch.equal(given, embeddings)
