"""A row for every token of a prompt: what transformers gives, however the engine computes it."""

import copy

import pytest
import torch
from kit.engine.parts import scheduler_of
from kit.folder.checkpoint import write_tokenizer
from kit.model.golden import SIZES, random_model

from lullm import LLM
from lullm.engine.pooling import rules
from lullm.errors import InvalidRequestError
from lullm.types.pooling.params import PoolingParams

OPTIONS = {"dtype": "float32", "max_model_len": 104, "block_size": 8, "max_num_batched_tokens": 23, "max_num_seqs": 4}
PROMPTS = [[7], list(range(5, 70)), list(range(90, 20, -1)), [9, 8, 7, 6], list(range(5, 60))]
RAW = PoolingParams(use_activation=False)


def fill(model, family="Qwen2"):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name and family != "Gemma2" else 0.0, 0.15, generator=generator)


def save_token_classifier(folder, family, **options):
    import transformers

    cls = getattr(transformers, f"{family}ForTokenClassification")
    sizes = SIZES | {"vocab_size": 320, "max_position_embeddings": 256} | options
    model = cls(cls.config_class(**copy.deepcopy(sizes))).eval()
    fill(model, family)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def save_reward_model(folder, architecture, num_labels):
    """Of Qwen2.5-Math: a layer and ReLU before the scores."""
    import json

    from safetensors.torch import save_file

    model = random_model("Qwen2", SIZES | {"vocab_size": 320, "max_position_embeddings": 256})
    size = model.config.hidden_size
    score = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, num_labels))
    fill(score)
    model.save_pretrained(folder)
    tensors = {
        name: tensor.contiguous().clone() for name, tensor in model.state_dict().items() if "lm_head" not in name
    }
    save_file(
        tensors | {f"score.{name}": tensor for name, tensor in score.state_dict().items()}, folder / "model.safetensors"
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    write_tokenizer(folder)
    with torch.inference_mode():
        return [score(model.model(torch.tensor([prompt])).last_hidden_state[0]) for prompt in PROMPTS]


def assert_close(found, expected):
    assert len(found) == len(expected)
    for output, rows in zip(found, expected, strict=True):
        assert isinstance(output.outputs.data, torch.Tensor) and output.outputs.data.dtype == torch.float32
        torch.testing.assert_close(output.outputs.data, rows, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    model = random_model("Qwen3", SIZES | {"vocab_size": 320, "max_position_embeddings": 256})
    model.save_pretrained(folder)
    write_tokenizer(folder)
    with torch.inference_mode():
        return folder, [model.model(torch.tensor([prompt])).last_hidden_state[0] for prompt in PROMPTS]


def test_last_hidden_states(qwen3):
    """The second time all is in the prefix cache, and one by one; each row is computed, with the same bits."""
    folder, hidden = qwen3
    params = PoolingParams(normalize=False)
    with LLM(str(folder), **OPTIONS, convert="embed") as llm:
        together = llm.encode(PROMPTS, params, pooling_task="token_embed", use_tqdm=False)
        assert_close(together, hidden)
        for prompt, output in zip(PROMPTS, together, strict=True):
            [alone] = llm.encode([prompt], params, pooling_task="token_embed", use_tqdm=False)
            assert torch.equal(alone.outputs.data, output.outputs.data) and alone.num_cached_tokens == 0
        cut = llm.encode(PROMPTS, PoolingParams(dimensions=8), pooling_task="token_embed", use_tqdm=False)
        assert_close(cut, [torch.nn.functional.normalize(rows[:, :8], dim=1) for rows in hidden])
        [last] = llm.embed([PROMPTS[1]], pooling_params=RAW, use_tqdm=False)
        assert last.num_cached_tokens > 50, "such requests fill the cache"
        with pytest.raises(InvalidRequestError, match="its tasks are embed, token_embed"):
            llm.reward(PROMPTS, use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="use LLM.score"):
            llm.encode(PROMPTS, pooling_task="score", use_tqdm=False)


@pytest.mark.parametrize("option", ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"])
def test_several_processes(qwen3, option):
    """Rows of each step come from a worker, and the table from an engine, as bytes."""
    folder, hidden = qwen3
    with LLM(str(folder), **OPTIONS, **{option: 2}, convert="embed", num_gpu_blocks_override=60) as llm:
        params = PoolingParams(normalize=False)
        assert_close(llm.encode(PROMPTS, params, pooling_task="token_embed", use_tqdm=False), hidden)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption_and_sleep(qwen3, mode):
    folder, hidden = qwen3
    options = {"num_gpu_blocks_override": 14, "preemption_mode": mode, "enable_prefix_caching": False, "watermark": 0.0}
    options |= {"scheduling_policy": "priority", "enable_sleep_mode": True}
    with LLM(str(folder), **OPTIONS | options, convert="embed") as llm:
        engine, found = llm.llm_engine, {}
        params = PoolingParams(normalize=False, task="token_embed")
        for number in (1, 2):
            engine.add_request(str(number), PROMPTS[number], params, priority=1)
        for step in range(1000):
            if step == 2:
                assert any(group.pooled.num_rows for group in scheduler_of(llm).running)
                engine.add_request("4", PROMPTS[4], params, priority=0)
            if step == 3:
                engine.sleep(level=1, mode="keep")
                engine.wake_up()
            for output in engine.step():
                found[int(output.request_id)] = output.outputs.data
            if not engine.has_unfinished_requests():
                break
        assert engine.stats().num_preemptions > 0
        for number in (1, 2, 4):
            torch.testing.assert_close(torch.from_numpy(found[number]), hidden[number], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Gemma2", "Mistral"])
def test_token_classification(tmp_path, family):
    model = save_token_classifier(tmp_path, family, num_labels=3)
    with torch.inference_mode():
        logits = [model(torch.tensor([prompt])).logits[0] for prompt in PROMPTS]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert_close(llm.encode(PROMPTS, RAW, pooling_task="token_classify", use_tqdm=False), logits)
        assert_close(llm.encode(PROMPTS, use_tqdm=False), [rows.softmax(1) for rows in logits])
        for call in (lambda: llm.score("a", "b"), lambda: llm.classify("a"), lambda: llm.embed("a")):
            with pytest.raises(InvalidRequestError, match="token"):
                call()


def test_rows_of_a_sequence_classifier(tmp_path):
    import transformers

    cls = transformers.LlamaForSequenceClassification
    model = cls(cls.config_class(**SIZES | {"vocab_size": 320, "num_labels": 3, "pad_token_id": 0})).eval()
    fill(model)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    with torch.inference_mode():
        rows = [model.score(model.model(torch.tensor([prompt])).last_hidden_state[0]) for prompt in PROMPTS]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert_close(llm.reward(PROMPTS, pooling_params=RAW, use_tqdm=False), rows)


def test_reward_model(tmp_path):
    rows = save_reward_model(tmp_path, "Qwen2ForRewardModel", 1)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert_close(llm.reward(PROMPTS, use_tqdm=False), rows)
        last = [output.outputs.probs for output in llm.classify(PROMPTS, use_tqdm=False)]
        torch.testing.assert_close(torch.tensor(last), torch.stack([each[-1] for each in rows]), atol=1e-4, rtol=0)


def test_process_reward_model(tmp_path, monkeypatch):
    """Only the rows of the tag, of the vocabulary or of the request; -1: all."""
    from lullm.config.pooling import use

    rows = [each.softmax(1) for each in save_reward_model(tmp_path, "Qwen2ForProcessRewardModel", 2)]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        tag = PoolingParams(step_tag_id=30)
        steps = [each[torch.tensor(prompt) == 30] for each, prompt in zip(rows, PROMPTS, strict=True)]
        assert [len(each) for each in steps] == [0, 1, 1, 0, 1]
        assert_close(llm.reward(PROMPTS, pooling_params=tag, use_tqdm=False), steps)
        word = llm.get_tokenizer().convert_ids_to_tokens(30)
    monkeypatch.setattr(use, "STEP_TAG", word)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert_close(llm.reward(PROMPTS, use_tqdm=False), steps)
        assert_close(llm.reward(PROMPTS, pooling_params=PoolingParams(step_tag_id=-1), use_tqdm=False), rows)


def test_rows_that_are_too_many(qwen3, monkeypatch):
    monkeypatch.setattr(rules, "MOST_ROW_BYTES", 4 * 48 * 60)
    with LLM(str(qwen3[0]), **OPTIONS, convert="embed") as llm:
        with pytest.raises(InvalidRequestError, match="truncate_prompt_tokens") as caught:
            llm.encode(PROMPTS, pooling_task="token_embed", use_tqdm=False)
        assert caught.value.code == "too_many_numbers"
        llm.embed(PROMPTS, use_tqdm=False)
