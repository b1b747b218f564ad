"""What an engine pools is what transformers gives, whatever the engine does to get it; generation is not disturbed."""

import dataclasses
import json
import math
import random

import pytest
import torch
from kit.engine.parts import model_of, open_requests_of, scheduler_of
from kit.folder.checkpoint import write_checkpoint, write_tokenizer
from kit.folder.sentence import write_modules
from kit.model.families import CASES
from kit.model.golden import SIZES, random_model
from kit.model.greedy import greedy_tokens

from lullm import LLM, SamplingParams
from lullm.errors import InvalidRequestError, LullmError, ModelLoadError
from lullm.types.pooling.params import PoolingParams

OPTIONS = {"dtype": "float32", "max_model_len": 160, "block_size": 8, "max_num_batched_tokens": 23, "max_num_seqs": 4}
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
RAW = PoolingParams(use_activation=False)


def make_prompts():
    """Ragged ones, most longer than a chunk, every second with a common start; one as long as the model allows."""
    rng = random.Random(0)

    def draw(count):
        return [rng.randrange(3, 300) for _ in range(count)]

    shared = draw(60)
    prompts = [draw(1), draw(8), *((shared if i % 2 else draw(60)) + draw(36 - 5 * i) for i in range(4)), draw(160)]
    return [*prompts, shared[:56]]


PROMPTS = make_prompts()


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    """(folder of a Qwen3, transformers' last hidden states by prompt, its greedy tokens)."""
    folder = tmp_path_factory.mktemp("qwen3")
    model = random_model("Qwen3", SIZES | {"vocab_size": 320, "max_position_embeddings": 256})
    model.save_pretrained(folder)
    write_tokenizer(folder)
    hidden = []
    for prompt in PROMPTS:
        with torch.inference_mode():
            hidden.append(model.model(torch.tensor([prompt])).last_hidden_state[0])
    tokens = [greedy_tokens(model, prompt, 20) for prompt in PROMPTS if len(prompt) <= 100]
    assert torch.stack([rows[-1] for rows in hidden]).std(0).mean() > 0.1
    return folder, hidden, tokens


def pooled(hidden, kind):
    rows = {"last": lambda h: h[-1], "cls": lambda h: h[0], "mean": lambda h: h.mean(0)}
    return torch.stack([rows[kind](h) for h in hidden])


def vectors(outputs):
    return torch.tensor([output.outputs.embedding for output in outputs])


def embed(llm, params=RAW, prompts=PROMPTS):
    return vectors(llm.embed(prompts, pooling_params=params, use_tqdm=False))


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_embeddings_beside_next_tokens(qwen3):
    """One batch of both: neither changes the other. The second time everything is in the prefix cache."""
    folder, hidden, tokens = qwen3
    texts = [prompt for prompt in PROMPTS if len(prompt) <= 100]
    with LLM(str(folder), **OPTIONS, convert="embed") as llm:
        for turn in range(2):
            engine, found = llm.llm_engine, {}
            for number, prompt in enumerate(PROMPTS):
                engine.add_request(f"embed {number}", prompt, RAW)
                if number < len(texts) - 1:
                    engine.add_request(f"tokens {number}", texts[number], GREEDY)
            num_mixed = 0
            while engine.has_unfinished_requests():
                num_mixed += len({group.pooled is None for group in scheduler_of(llm).running}) == 2
                for output in engine.step():
                    assert output.finished or not output.request_id.startswith("embed")
                    found[output.request_id] = output
            assert num_mixed > 10 or turn == 1
            data = [found[f"embed {number}"].outputs.data for number in range(len(PROMPTS))]
            assert_close(torch.tensor(data), pooled(hidden, "last"))
            assert [found[f"tokens {number}"].outputs[0].token_ids for number in range(len(texts) - 1)] == tokens[:-1]
        assert found["embed 2"].num_cached_tokens == 88 and found["embed 2"].metrics.finished_time
        assert engine.stats().pooled_total == 2 * len(PROMPTS)
        assert not open_requests_of(llm)


@pytest.mark.parametrize("kind", ["lasttoken", "cls_token", "mean_tokens"])
def test_the_folder_says_how_to_pool(qwen3, tmp_path, kind):
    """Chunks of 23 tokens, and prompts that are in the cache: what reads every row computes every row."""
    folder, hidden, _ = qwen3
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    write_modules(tmp_path, kind, normalize=kind != "cls_token")
    expected = pooled(hidden, {"lasttoken": "last", "cls_token": "cls", "mean_tokens": "mean"}[kind])
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert_close(embed(llm), expected)
        hits = llm.llm_engine.stats().prefix_cache_hits_total
        assert_close(embed(llm), expected)
        assert (llm.llm_engine.stats().prefix_cache_hits_total > hits) is (kind == "lasttoken")
        as_stated = embed(llm, None)
        normalized = torch.nn.functional.normalize(expected, dim=1)
        assert_close(as_stated, expected if kind == "cls_token" else normalized)
        assert_close(embed(llm, PoolingParams(normalize=True)), normalized)
        cut = embed(llm, PoolingParams(dimensions=8, normalize=True))
        assert_close(cut, torch.nn.functional.normalize(expected[:, :8], dim=1))
        with pytest.raises(InvalidRequestError, match="gives embeddings, not text"):
            llm.generate("hello", use_tqdm=False)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("kind", ["lasttoken", "mean_tokens"])
def test_preemption(qwen3, tmp_path, kind, mode):
    """A prompt that is half computed gives its blocks back for a request of higher priority."""
    folder, hidden, tokens = qwen3
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    write_modules(tmp_path, kind, normalize=True)
    options = {"num_gpu_blocks_override": 20, "preemption_mode": mode, "enable_prefix_caching": False, "watermark": 0.0}
    options |= {"scheduling_policy": "priority"}
    with LLM(str(tmp_path), **OPTIONS | options, convert="embed") as llm:
        engine, found = llm.llm_engine, {}
        for number in (2, 3, 4):
            engine.add_request(f"embed {number}", PROMPTS[number], RAW, priority=1)
        for step in range(1000):
            if step == 3:  # goes first, and takes what the others hold
                engine.add_request("tokens", PROMPTS[5], GREEDY, priority=0)
                assert any(group.pooled.num_rows for group in scheduler_of(llm).running) or kind == "lasttoken"
            for output in engine.step():
                found[output.request_id] = output
            if not engine.has_unfinished_requests():
                break
        assert engine.stats().num_preemptions > 0
        data = torch.tensor([found[f"embed {number}"].outputs.data for number in (2, 3, 4)])
        assert_close(data, pooled(hidden, "last" if kind == "lasttoken" else "mean")[2:5])
        assert found["tokens"].outputs[0].token_ids == tokens[5]


@pytest.mark.parametrize("kind", ["lasttoken", "mean_tokens"])
@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_in_the_middle(qwen3, tmp_path, kind, level):
    folder, hidden, _ = qwen3
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    write_modules(tmp_path, kind, normalize=True)
    with LLM(str(tmp_path), **OPTIONS, enable_sleep_mode=True) as llm:
        engine, found = llm.llm_engine, {}
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(str(number), prompt, RAW)
        for step in range(1000):
            if step in (2, 6):
                engine.sleep(level=level, mode="keep")
                engine.wake_up()
            for output in engine.step():
                found[int(output.request_id)] = output.outputs.data
            if not engine.has_unfinished_requests():
                break
        expected = pooled(hidden, "last" if kind == "lasttoken" else "mean")
        assert_close(torch.tensor([found[number] for number in range(len(PROMPTS))]), expected)


def test_steps_in_flight_and_whole_prompts(qwen3):
    """Two steps at a time; and prompts in one piece."""
    folder, hidden, _ = qwen3
    changes = [{"async_scheduling": True}, {"enable_chunked_prefill": False, "max_num_batched_tokens": 160}]
    for change in changes:
        with LLM(str(folder), **OPTIONS | change, runner="pooling") as llm:
            assert_close(embed(llm), pooled(hidden, "last"))


def test_an_abort_in_the_middle(qwen3):
    folder, hidden, _ = qwen3
    with LLM(str(folder), **OPTIONS, runner="pooling") as llm:
        engine = llm.llm_engine
        engine.add_request("long", PROMPTS[6], RAW)
        engine.step()
        engine.abort_request("long")
        [output] = engine.step()
        assert (output.finish_reason, output.outputs.data, output.finished) == ("abort", [], True)
        assert engine.stats().num_used_blocks == 0 and engine.stats().finished_total["abort"] == 1
        assert_close(embed(llm), pooled(hidden, "last"))


def test_no_logits_are_computed(qwen3, monkeypatch):
    folder, hidden, _ = qwen3
    with LLM(str(folder), **OPTIONS, convert="embed") as llm:
        monkeypatch.setattr(type(model_of(llm)), "compute_logits", lambda *_: pytest.fail("a head for nothing"))
        assert_close(embed(llm), pooled(hidden, "last"))


def test_a_window(tmp_path):
    """Blocks leave the windows while the prompt is computed, and the mean still holds every row."""
    options = {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 0}
    model = random_model("Qwen2", SIZES | options | {"vocab_size": 320})
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    write_modules(tmp_path, "mean_tokens", normalize=False)
    prompts = [prompt for prompt in PROMPTS if len(prompt) < 120]
    with torch.inference_mode():
        hidden = [model.model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]
    with LLM(str(tmp_path), **OPTIONS | {"max_model_len": 128}) as llm:
        assert_close(embed(llm, None, prompts), pooled(hidden, "mean"))


@pytest.mark.parametrize(
    ("family", "variant"),
    [
        ("GPT2", "plain"),
        ("OPT", "projected, norms behind (350m)"),
        ("Phi3", "plain"),
        ("Qwen3Next", "plain"),
        ("DeepseekV3", "plain"),
    ],
)
def test_other_decoders(tmp_path, family, variant):
    """`last_hidden_state` as transformers has it: behind OPT's projection, with states, with latent vectors."""
    model = random_model(family, SIZES | CASES[family].variants[variant] | {"vocab_size": 320})
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    prompts = [prompt[:60] for prompt in PROMPTS]
    with torch.inference_mode():
        hidden = [model.base_model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]
    with LLM(str(tmp_path), **OPTIONS | {"max_model_len": 64}, convert="embed") as llm:
        for _ in range(2):  # the second time from the prefix cache
            assert_close(embed(llm, RAW, prompts), pooled(hidden, "last"))


def test_a_decoder_of_its_own_has_no_heads(tmp_path):
    random_model("GPT2", SIZES | CASES["GPT2"].variants["plain"] | {"vocab_size": 320}).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text()
    tokenizer = json.loads(text)
    tokenizer["model"]["vocab"] |= {"yes": 300, "no": 301}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelLoadError, match="gives embeddings only"):
        LLM(str(tmp_path), max_model_len=64, convert="rerank")


def test_what_is_not_finite_is_an_error(qwen3, monkeypatch):
    folder, _, _ = qwen3
    with LLM(str(folder), **OPTIONS, runner="pooling") as llm:
        monkeypatch.setattr(type(model_of(llm)), "pool", lambda self, hidden, ops: hidden.float() / 0)
        with pytest.raises(LullmError, match="prompt 0 was aborted: nothing can be pooled"):
            embed(llm)


def test_a_model_for_next_tokens_refuses(qwen3_folder):
    with LLM(str(qwen3_folder), max_model_len=128) as llm:
        for call in (lambda: llm.embed("hello"), lambda: llm.score("a", "b"), lambda: llm.encode("hello")):
            with pytest.raises(InvalidRequestError, match="convert='embed'") as caught:
                call()
            assert caught.value.code == "no_pooling"


@pytest.mark.parametrize(
    ("params", "message", "param"),
    [
        ({"dimensions": 65}, "above the 64 that the model has", "dimensions"),
        ({"dimensions": 0}, "at least 1", "dimensions"),
        ({"truncate_prompt_tokens": 0}, "-1 or", "truncate_prompt_tokens"),
        ({"normalize": "yes"}, "true or false", "normalize"),
        ({"normalize": True, "use_activation": False}, "contradict", "normalize"),
        ({"task": "classify"}, "asks? for", "task"),
        ({"task": "token_embed"}, "the call for 'embed'", "task"),
        ({"task": "plugin"}, "one of embed, classify, score, token_embed, token_classify", "task"),
        ({"step_tag_id": 5}, "is for the task 'token_classify'", "step_tag_id"),
        ({"step_tag_id": -2}, "at least -1", "step_tag_id"),
    ],
)
def test_parameters_out_of_range(embedder, params, message, param):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        embedder.embed("hello", pooling_params=PoolingParams(**params), use_tqdm=False)
    assert caught.value.param == param


@pytest.fixture(scope="module")
def embedder(qwen3_folder):
    with LLM(str(qwen3_folder), convert="embed", max_model_len=64) as llm:
        yield llm


def test_forms_of_prompts(embedder):
    ids = embedder.get_tokenizer().encode("hello world")
    forms = ["hello world", ids, {"prompt": "hello world"}, {"prompt_token_ids": ids}]
    outputs = embedder.embed(forms, use_tqdm=False)
    assert len({tuple(output.outputs.embedding) for output in outputs}) == 1
    assert math.isclose(math.hypot(*outputs[0].outputs.embedding), 1.0) and outputs[0].outputs.hidden_size == 64
    assert outputs[0].prompt_token_ids == ids and outputs[0].finished
    several = [PoolingParams(dimensions=size) for size in (3, 4)]
    assert [o.outputs.hidden_size for o in embedder.embed(["a", "b"], pooling_params=several, use_tqdm=False)] == [3, 4]
    assert embedder.embed([], use_tqdm=False) == []
    [output] = embedder.encode("hello world", pooling_task="embed", use_tqdm=False)
    assert output.outputs.data == outputs[0].outputs.embedding


def test_lengths(embedder):
    """A prompt may fill the model's length, since nothing is generated; the last tokens are kept on demand."""
    ids = [5 + i % 200 for i in range(65)]
    with pytest.raises(InvalidRequestError, match="65 tokens > 64;") as caught:
        embedder.embed([ids], use_tqdm=False)
    assert caught.value.code == "context_length_exceeded"
    [whole] = embedder.embed([ids[1:]], use_tqdm=False)
    [cut] = embedder.embed([ids], pooling_params=PoolingParams(truncate_prompt_tokens=-1), use_tqdm=False)
    assert cut.prompt_token_ids == ids[1:] and cut.outputs == whole.outputs
    [last] = embedder.embed([ids], pooling_params=PoolingParams(truncate_prompt_tokens=9), use_tqdm=False)
    assert last.prompt_token_ids == ids[-9:]


def test_cosines(embedder):
    first, second = ["hello", "the quick brown fox"], ["hello", "a b c"]
    assert [round(o.outputs.score, 6) for o in embedder.score("hello", second, use_tqdm=False)][0] == 1.0
    a, b = (vectors(embedder.embed(texts, use_tqdm=False)) for texts in (first, second))
    found = torch.tensor([o.outputs.score for o in embedder.score(first, second, use_tqdm=False)])
    assert_close(found, torch.nn.functional.cosine_similarity(a, b))
    [one] = embedder.score("hello", "a b c", use_tqdm=False)
    assert -1 < one.outputs.score < 1 and one.finished
    for sides in ((["a", "b"], ["c"]), (["a", "b"], ["c", "d", "e"]), ([], ["c"]), ("a", []), (["a"], [3])):
        with pytest.raises(InvalidRequestError, match="data_"):
            embedder.score(*sides, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="into the query"):
        embedder.score("a", "b", instruction="judge", use_tqdm=False)


def test_tied_and_untied_heads_are_left_out(tmp_path):
    """A folder for embeddings may lack the head, and is not asked for it."""
    from safetensors.torch import load_file, save_file

    folder = write_checkpoint(tmp_path, "qwen3", architectures=["Qwen3Model"])
    file = folder / "model.safetensors"
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(file).items() if "lm_head" not in name}
    save_file(tensors, file)
    write_modules(folder, "lasttoken", normalize=True)
    config = json.loads((folder / "config.json").read_text())
    found = []
    for architecture in ("Qwen3ForCausalLM", "Qwen3Model"):
        (folder / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
        with LLM(str(folder), max_model_len=64) as llm:
            found.append(embed(llm, None, ["hello"]))
    assert torch.equal(*found)


def test_outputs_pickle(embedder):
    import pickle

    [output] = embedder.embed("hello", use_tqdm=False)
    assert pickle.loads(pickle.dumps(output)) == output
    assert dataclasses.replace(output, finished=False) != output
