"""Every causal language model of the installed transformers, tiny and random: what lullm does with each.

`verdict` says it: transformers' code over lullm's cache gives the same tokens, or a refusal. Those of lullm's own
families stand in `kit.model.families`.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import torch

from lullm import LLM, SamplingParams
from lullm.config.family.table import FAMILIES
from lullm.config.family.text_model import TEXT_MODELS
from lullm.errors import LullmError

VOCAB_SIZE = 320
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
OPTIONS: dict[str, Any] = {
    "model_impl": "transformers", "tokenizer": "demo", "dtype": "float32", "max_model_len": 96, "block_size": 8,
    "max_num_batched_tokens": 23, "max_num_seqs": 3,
}  # fmt: skip

SMALL: tuple[tuple[str, Any], ...] = (
    (r"^vocab_size$|^vocab_size_per_layer_input$", VOCAB_SIZE),
    (r"^(num_hidden_layers|n_layers?|num_layers|decoder_layers|n_layer)$", 4),
    (r"^(num_attention_heads|n_heads?|num_heads|decoder_attention_heads|attention_heads)$", 4),
    (r"^(num_key_value_heads|num_kv_heads|n_kv_heads|num_query_groups)$", 2),
    (r"^(hidden_size|n_embd|d_model|dim|embed_dim|embedding_size|word_embed_proj_dim)$", 64),
    (r"^(head_dim|kv_channels|attention_head_dim|d_kv)$", 16),
    (r"^(n_inner|ffn_dim|decoder_ffn_dim|d_ff|ffn_hidden_size)$|(^|_)intermediate_size$", 48),
    (r"^(max_position_embeddings|n_positions|max_seq_len|n_ctx|max_target_positions)$", 128),
    (r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts)$", 4),
    (r"^(num_experts_per_tok|moe_k|top_k_experts|num_experts_per_token|moe_topk)$", 2),
    (r"^(n_group|topk_group|num_expert_group)$", 1),
    (r"^sliding_window$|^attention_window$|^window_size$", 32),
    (r"^kv_lora_rank$", 16),
    (r"^q_lora_rank$", 16),
    (r"^qk_rope_head_dim$", 8),
    (r"^qk_nope_head_dim$", 16),
    (r"^v_head_dim$", 16),
    (r"^(rotary_dim)$", 8),
)
"""Sizes by the names of fields; the first counts."""


def architectures() -> dict[str, str]:
    """Those that lullm has no family for, each with a `model_type` that has it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    own = FAMILIES.keys() | TEXT_MODELS.keys()
    return {name: model_type for model_type, name in sorted(NAMES.items(), reverse=True) if name not in own}


def tiny_config(model_type: str) -> Any:
    """Its config class with small numbers where a field's name is known; its own numbers where these do not fit."""
    from transformers import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    options: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    names = {field.name: field.default for field in dataclasses.fields(cls)}
    for name, default in names.items():
        found = next((value for pattern, value in SMALL if re.search(pattern, name)), None)
        if found is not None and (default is not None or name in ("head_dim", "num_key_value_heads")):
            options[name] = found
    if "kv_lora_rank" in names:  # all heads have keys of their own
        options |= {"num_key_value_heads": 4}
        options.pop("head_dim", None)
    try:
        return cls(**options)
    except Exception:  # noqa: BLE001 - sizes that depend on each other
        return cls()


LARGEST = 20_000_000


def num_weights(config: Any) -> int:
    """Of the model of a config, which is not made."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def random_causal(model_type: str, seed: int = 0) -> Any:
    """A random model whose activations are large enough for mistakes to show."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny_config(model_type), dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_factor = "norm" in name.lower() and not name.endswith("bias") and bool((parameter == 1).all())
            parameter.normal_(1.0 if is_factor else 0.0, 0.15, generator=generator)
    return model


def make_prompts() -> list[list[int]]:
    """Of 8 to 60 tokens, two with a common start."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> list[int]:
        return torch.randint(4, 300, (count,), generator=generator).tolist()

    shared = draw(40)
    return [draw(8), shared + draw(20), shared + draw(5)]


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """By transformers without its cache, which forgets in some models what their masks show (Moshi)."""
    given = torch.tensor([prompt])
    generated = model.generate(
        given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=GREEDY.max_tokens,
        eos_token_id=None, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    found: list[int] = generated[0, len(prompt) :].tolist()
    return found


def verdict(folder: Path, architecture: str) -> str:
    """What `model_impl="transformers"` does with an architecture: `RUNS`, or why it is refused.

    Raises AssertionError: its tokens are not those of transformers.
    """
    from lullm.models.fallback.config import foreign_config

    model_type = architectures()[architecture]
    torch.manual_seed(0)
    try:
        config = tiny_config(model_type)
        foreign_config(json.loads(config.to_json_string(use_diff=False)) | {"architectures": [architecture]})
    except LullmError as error:
        return reason(str(error))
    except Exception as error:  # noqa: BLE001 - a config class that its own numbers break
        return f"not tried: {type(error).__name__} of its config class"
    if num_weights(config) > LARGEST:
        return "not tried: no small model is made by its config's names"
    theirs = random_causal(model_type)
    expected = [greedy(theirs, prompt) for prompt in make_prompts()]
    theirs.save_pretrained(folder)
    with LLM(str(folder), **OPTIONS) as llm:
        for _ in range(2):  # the second time from the prefix cache
            outputs = llm.generate(make_prompts(), GREEDY, use_tqdm=False)
            assert [output.outputs[0].token_ids for output in outputs] == expected
    return RUNS


RUNS = "runs"
REASONS = {
    "merges tensors": "tensors that transformers merges as it loads them",
    "takes the positions of its tokens from their number": "positions counted from the number of tokens",
    "neither causal nor a sliding window": "masks that are neither causal nor windows",
    "attends to tokens behind": "masks that are neither causal nor windows",
    "recurrent or convolve": "layers that are recurrent or convolve",
    "by itself": "layers that compute attention, or with masks or tokens, by themselves",
    "over another attention than its own": "no model over another attention than its own, or of its class's defaults",
    "calls attention": "another number of attentions than layers",
    "heads of different size": "heads of different sizes",
    "with other rows than one per token": "attention with other rows than one per token",
    "asks attention for": "attention with something that lullm's has not",
    "parameters beside": "parameters beside layers and head",
    "makes a": "a model of another class",
    "no max_position_embeddings": "no `max_position_embeddings`",
    "neither computed nor in a checkpoint": "tensors that are neither computed nor in a checkpoint",
    "must be at most": "sizes beyond any model's",
}
"""By words of an error."""


def reason(error: str) -> str:
    """Why an architecture is refused, in a few words."""
    return next((short for words, short in REASONS.items() if words in error), f"unexplained: {error}")


FILE = Path(__file__).with_name("every.json")


def recorded() -> dict[str, str]:
    """The verdicts that `models/test_every.py` compares with what it finds."""
    found: dict[str, str] = json.loads(FILE.read_text())
    return found


if __name__ == "__main__":  # writes the record anew
    import tempfile

    verdicts = {}
    for name in sorted(architectures()):
        with tempfile.TemporaryDirectory() as folder:
            verdicts[name] = verdict(Path(folder), name)
        print(name, verdicts[name], flush=True)
    FILE.write_text(json.dumps(verdicts, indent=1) + "\n")
