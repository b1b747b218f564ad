"""Models by transformers' code through the engine: its greedy tokens, whatever the engine does to get them."""

import json
import random
from pathlib import Path

import pytest
import torch
from kit.folder.checkpoint import write_tokenizer
from kit.model.golden import random_model
from kit.model.greedy import greedy_tokens

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, ModelLoadError
from lullm.kv.layout import num_blocks_for_len
from lullm.models.fallback.choice import read_model_config

OPTIONS = {"dtype": "float32", "max_model_len": 160, "block_size": 8, "model_impl": "transformers"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SIZES = {
    "vocab_size": 320, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
CASES = {
    "Cohere2": {"sliding_window": 32, "logit_scale": 1.0},  # windows in three of four layers; tied
    "GPTNeoX": {},
}


def make_prompts():
    """One that grows beyond the window, and three of 60 to 90 tokens, two with a common start."""
    rng = random.Random(0)

    def draw(count):
        return [rng.randrange(4, 300) for _ in range(count)]

    shared = draw(60)
    return [draw(8), shared + draw(30), draw(70), shared + draw(5)]


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request, tmp_path_factory):
    """(folder, transformers' tokens)."""
    folder = tmp_path_factory.mktemp(request.param)
    model = random_model(request.param, SIZES | CASES[request.param])
    model.save_pretrained(folder)
    write_tokenizer(folder)
    tokens = [greedy_tokens(model, prompt, GREEDY.max_tokens) for prompt in make_prompts()]
    assert len({token for output in tokens for token in output}) > 10, "a model that says something"
    return str(folder), tokens


def generate(llm):
    return [output.outputs[0].token_ids for output in llm.generate(make_prompts(), GREEDY, use_tqdm=False)]


def test_chunks_and_the_prefix_cache(checkpoint):
    folder, expected = checkpoint
    with LLM(folder, **OPTIONS, max_num_batched_tokens=23, max_num_seqs=3) as llm:
        assert generate(llm) == expected
        hits = llm.llm_engine.stats().prefix_cache_hits_total
        assert generate(llm) == expected, "with every prompt in the cache"
        assert llm.llm_engine.stats().prefix_cache_hits_total > hits


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption(checkpoint, mode):
    folder, expected = checkpoint
    config = read_model_config(Path(folder), "transformers")
    enough = num_blocks_for_len(config, OPTIONS["block_size"], OPTIONS["dtype"], OPTIONS["max_model_len"])
    options = {"num_gpu_blocks_override": enough + 2, "preemption_mode": mode, "enable_prefix_caching": mode == "swap"}
    with LLM(folder, **OPTIONS, **options) as llm:
        assert generate(llm) == expected
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_in_the_middle(checkpoint, level):
    folder, expected = checkpoint
    with LLM(folder, **OPTIONS, enable_sleep_mode=True) as llm:
        engine, found = llm.llm_engine, {}
        for number, prompt in enumerate(make_prompts()):
            engine.add_request(str(number), prompt, GREEDY)
        for step in range(1000):
            if step == 9:
                assert engine.sleep(level=level, mode="keep").freed_bytes >= 0
                engine.wake_up()
            for output in engine.step():
                found[int(output.request_id)] = output.outputs[0].token_ids
            if not engine.has_unfinished_requests():
                break
        assert [found[number] for number in range(len(found))] == expected


def test_new_weights_under_a_trainers_names(checkpoint):
    folder, expected = checkpoint
    with LLM(folder, **OPTIONS) as llm:
        name = "model.embed_tokens.weight" if "Cohere2" in folder else "gpt_neox.embed_in.weight"
        llm.update_weights([(f"module.{name}", torch.zeros(320, 48))])
        llm.reset_prefix_cache()
        assert generate(llm) != expected


def test_quantization_is_refused(checkpoint):
    with pytest.raises(ConfigError, match="quantization='int8' is not there for .*, which is computed by transformers"):
        LLM(checkpoint[0], **OPTIONS, quantization="int8")


def test_an_own_family_may_run_so_too(tmp_path):
    """And in bfloat16 its log-probabilities are near those of lullm's own layers."""
    model = random_model("Llama", SIZES)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    found = []
    for impl in ("lullm", "transformers"):
        with LLM(str(tmp_path), **OPTIONS | {"dtype": "bfloat16", "model_impl": impl}) as llm:
            outputs = llm.generate(make_prompts(), params, use_tqdm=False)
        found.append(
            torch.tensor(
                [
                    entry[token_id].logprob
                    for output in outputs
                    for entry, token_id in zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
                ]
            )
        )
    assert 1e-5 < (found[0] - found[1]).abs().mean() < 0.06


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab_size": 10**11}, "vocab_size must be at most"),
        ({"intermediate_size": 10**11}, "intermediate_size must be at most"),
        ({"vocab_size": 10**9}, "by config.json the model has .* numbers, and the files hold"),
        ({"intermediate_size": 10**6}, "by config.json the model has .* numbers, and the files hold"),
    ],
    ids=str,
)
def test_absurd_sizes_are_found_before_memory_is_taken(checkpoint, tmp_path, change, words):
    """The error was that of an arena of 10^5 GiB."""
    for path in Path(checkpoint[0]).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelLoadError, match=words):
        LLM(str(tmp_path), **OPTIONS)
