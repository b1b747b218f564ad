"""Prompts as rows of embeddings: those of token ids give the tokens of the ids, whatever the engine does."""

import asyncio

import pytest
import torch
from kit.audio.checkpoint import write_whisper
from kit.engine.parts import block_space_of, executor_of, runner_of
from kit.engine.prompts import random_prompts
from kit.engine.same_tokens import tokens_of
from kit.engine.scenes import GUESSING, PREFILL_FIRST, WAYS, asleep_meanwhile, check_preempted, see_no_rows
from kit.folder.checkpoint import write_tokenizer
from kit.model.families import CASES
from kit.model.golden import SIZES, random_model, save
from kit.model.greedy import greedy_tokens
from kit.worker.threads import use_threads
from safetensors.torch import load_file

from lullm import LLM, AsyncLLMEngine, EngineConfig, SamplingParams
from lullm.errors import InvalidRequestError, UnsupportedError

OPTIONS = {
    "dtype": "float32", "max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 64,
    "enable_prompt_embeds": True,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = random_prompts(6, 60)


@pytest.fixture(scope="module")
def table(qwen3_folder):
    return load_file(qwen3_folder / "model.safetensors")["model.embed_tokens.weight"].float()


@pytest.fixture(scope="module")
def embedded(table):
    """The prompts as rows."""
    return [{"prompt_embeds": table[prompt]} for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    """The tokens of the prompts as ids."""
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        return generate(llm, PROMPTS)


def generate(llm, prompts, params=GREEDY):
    return tokens_of(llm.generate(prompts, params, use_tqdm=False))


OWN_WAYS = WAYS | PREFILL_FIRST | GUESSING


@pytest.mark.parametrize("options", OWN_WAYS.values(), ids=OWN_WAYS)
def test_rows_are_the_ids(qwen3_folder, embedded, expected, options):
    with LLM(str(qwen3_folder), **OPTIONS | options) as llm:
        for _ in range(2):  # the second time from cached prefixes
            outputs = llm.generate(embedded, GREEDY, use_tqdm=False)
            assert tokens_of(outputs) == expected
            assert [output.prompt_token_ids for output in outputs] == [[0] * len(prompt) for prompt in PROMPTS]
        # beside ids in one step, and by themselves
        mixed = [
            prompt if number % 2 else rows for number, (prompt, rows) in enumerate(zip(PROMPTS, embedded, strict=True))
        ]
        assert generate(llm, mixed) == expected
        assert generate(llm, embedded[1]) == expected[1:2]
        block_space_of(llm).check_conservation()


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption(qwen3_folder, embedded, expected, mode):
    options = {"num_gpu_blocks_override": 18, "max_num_batched_tokens": 24, "max_num_seqs": 8, "max_model_len": 96}
    with LLM(str(qwen3_folder), **OPTIONS | options, preemption_mode=mode) as llm:
        assert generate(llm, embedded) == expected
        check_preempted(llm)


@pytest.mark.parametrize("backend", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["tp", "pp"])
def test_several_workers(qwen3_folder, embedded, expected, monkeypatch, backend):
    use_threads(monkeypatch)
    with LLM(str(qwen3_folder), **OPTIONS, **backend, max_num_batched_tokens=40, max_num_seqs=8) as llm:
        assert generate(llm, embedded) == expected


def test_a_worker_in_a_process_that_sleeps(qwen3_folder, embedded, expected):
    with LLM(str(qwen3_folder), **OPTIONS, distributed_executor_backend="mp", enable_sleep_mode=True) as llm:
        assert generate(llm, embedded) == expected
        llm.sleep(2)
        llm.wake_up()
        assert generate(llm, embedded) == expected


def test_an_engine_in_a_process(qwen3_folder, table, expected):
    async def ask():
        config = EngineConfig(model=str(qwen3_folder), **OPTIONS)
        engine = AsyncLLMEngine(config)
        try:
            found = []
            for number, prompt in enumerate(PROMPTS[:2]):
                async for output in engine.generate({"prompt_embeds": table[prompt]}, GREEDY, str(number)):
                    last = output
                found.append([last.outputs[0].token_ids])
            return found
        finally:
            await engine.shutdown(drain=False)

    assert asyncio.run(ask()) == expected[:2]


@pytest.mark.parametrize("call", [{"level": 1}, {"level": 2}, {"level": 2, "tags": ["weights"]}], ids=str)
def test_sleep_in_the_middle_of_rows(qwen3_folder, embedded, expected, call):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "enable_sleep_mode": True}
    with LLM(str(qwen3_folder), **OPTIONS | options) as llm:
        outputs = asleep_meanwhile(llm, embedded, GREEDY, call, look=see_no_rows(llm))
        assert tokens_of(outputs) == expected


def test_hibernation_in_the_middle_of_rows(qwen3_folder, embedded, expected, tmp_path):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
    with LLM(str(qwen3_folder), **OPTIONS | options) as llm:
        for number, prompt in enumerate(embedded):
            llm.llm_engine.add_request(str(number), prompt, GREEDY)
        for _ in range(5):
            assert not [output for output in llm.llm_engine.step() if output.finished]
        llm.hibernate(tmp_path / "night")
    with LLM(str(qwen3_folder), **OPTIONS | options) as llm:
        llm.resume(tmp_path / "night")
        found = {output.request_id: output for output in llm.wait_for_completion(use_tqdm=False)}
        assert tokens_of(found[key] for key in sorted(found)) == expected


def test_prefixes_are_shared_by_equal_rows_only(qwen3_folder, table):
    rows = table[PROMPTS[1]]
    other = rows.clone()
    other[20] += 1.0

    def cached(given):
        return llm.generate({"prompt_embeds": given}, GREEDY, use_tqdm=False)[0].num_cached_tokens

    with LLM(str(qwen3_folder), **OPTIONS | {"max_num_seqs": 4}) as llm:
        whole = (len(rows) - 1) // 8 * 8
        assert [cached(rows), cached(rows), cached(rows.numpy()), cached(other)] == [0, whole, whole, 16]
        assert llm.generate([PROMPTS[1]], GREEDY, use_tqdm=False)[0].num_cached_tokens == 0
        assert cached(rows[:24]) == 16  # equal blocks, whatever is behind them
        assert llm.generate({"prompt_token_ids": [0] * 40}, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0


def test_forks_beams_and_penalties(qwen3_folder, embedded):
    """The placeholders of rows are no tokens that a penalty could read."""
    asked = [
        SamplingParams(temperature=1.0, n=3, seed=5, max_tokens=6, ignore_eos=True),
        SamplingParams(n=3, beam_width=3, max_tokens=6, ignore_eos=True),
    ]
    with LLM(str(qwen3_folder), **OPTIONS, max_num_batched_tokens=32, max_num_seqs=8) as llm:
        for params in asked:
            assert generate(llm, embedded[1:2], params) == generate(llm, PROMPTS[1:2], params)
        penal = GREEDY.replace(repetition_penalty=1e6, logit_bias={0: 100.0}, max_tokens=3)
        assert generate(llm, embedded[:1], penal)[0][0][0] == 0
        assert generate(llm, [[*PROMPTS[0], 0]], penal)[0][0][0] != 0


def test_plans_carry_what_they_show(qwen3_folder, embedded):
    with LLM(str(qwen3_folder), **OPTIONS | {"max_num_batched_tokens": 16, "max_num_seqs": 2}) as llm:
        executor, sizes = executor_of(llm), []
        launch = executor.launch_model

        def watch(plan):
            sizes.append(sum(rows.num_rows for rows in plan.tiles))
            return launch(plan)

        executor.launch_model = watch
        generate(llm, embedded)
        assert 0 < max(sizes) <= 16 + 2 * 8
        assert sum(rows.shape[1] for rows in runner_of(llm)._tiles._rows.values()) <= 16


FAMILIES = (
    "Llama", "Gemma2", "Granite", "RecurrentGemma", "Afmoe", "FalconH1", "Bloom", "OPT", "BioGpt", "GPT2", "Zamba2",
)  # fmt: skip


def continued(model, rows, max_tokens):
    """What a model of transformers goes on with behind rows."""
    mask = torch.ones(1, len(rows), dtype=torch.long)
    options = {"max_new_tokens": max_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(inputs_embeds=rows[None], attention_mask=mask, **options)[0].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_what_transformers_takes(family, tmp_path):
    """`inputs_embeds`: with or without the family's factor, before its norm, its projection, its positions."""
    options = SIZES | {"vocab_size": 320, "max_position_embeddings": 256} | CASES[family].engine
    if family == "OPT":
        options |= {"word_embed_proj_dim": 32}
    model = random_model(family, options)
    save(model, tmp_path)
    write_tokenizer(tmp_path)
    prompts = [prompt[:20] for prompt in PROMPTS[:3]]
    with torch.inference_mode():
        rows = [model.get_input_embeddings()(torch.tensor(prompt)) for prompt in prompts]
        if family == "FalconH1":  # its factor is on the embeddings of ids, not on `inputs_embeds`
            rows = [each * model.config.embedding_multiplier for each in rows]
    expected = [greedy_tokens(model, prompt, 12) for prompt in prompts]
    if family not in ("FalconH1", "Zamba2"):  # whose `generate` takes no `inputs_embeds`
        assert [continued(model, each, 12) for each in rows] == expected
    with LLM(str(tmp_path), **OPTIONS | {"max_num_seqs": 4, "max_num_batched_tokens": 16}) as llm:
        given = [{"prompt_embeds": each} for each in rows]
        assert generate(llm, given) == [[tokens] for tokens in expected]


def test_a_pipeline_whose_stages_all_read_embeddings(tmp_path, monkeypatch):
    use_threads(monkeypatch)
    model = random_model("Zamba2", SIZES | {"vocab_size": 320} | CASES["Zamba2"].engine)
    save(model, tmp_path)
    write_tokenizer(tmp_path)
    rows = model.get_input_embeddings()(torch.tensor(PROMPTS[0])).detach()
    with LLM(str(tmp_path), **OPTIONS | {"pipeline_parallel_size": 2, "max_num_seqs": 4}) as llm:
        assert generate(llm, {"prompt_embeds": rows}) == generate(llm, PROMPTS[0])


def test_other_types(qwen3_folder, table, expected):
    """Rows of any type; the model's own type holds them, and their numbers must fit into it."""
    rows = table[PROMPTS[1]]
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        for given in (rows.double(), rows[None], rows.numpy(), rows.tolist(), rows.requires_grad_()):
            assert generate(llm, {"prompt_embeds": given}) == expected[1:2]
    with LLM(str(qwen3_folder), **OPTIONS | {"dtype": "bfloat16"}) as llm:
        exact = generate(llm, PROMPTS[1:2])
        for given in (rows.detach(), rows.detach().bfloat16()):
            assert generate(llm, {"prompt_embeds": given}) == exact


REFUSED = [
    ({"prompt_embeds": torch.zeros(3, 5)}, "T, 64.* not 3 x 5"),
    ({"prompt_embeds": torch.zeros(64)}, "not 64"),
    ({"prompt_embeds": torch.zeros(0, 64)}, "not 0 x 64"),
    ({"prompt_embeds": torch.zeros(2, 3, 64)}, "not 2 x 3 x 64"),
    ({"prompt_embeds": torch.zeros(3, 64, dtype=torch.long)}, "floating"),
    ({"prompt_embeds": torch.zeros(3, 64).to_sparse()}, "dense"),
    ({"prompt_embeds": torch.full((3, 64), float("nan"))}, "finite"),
    ({"prompt_embeds": torch.full((3, 64), 1e300, dtype=torch.float64)}, "finite"),
    ({"prompt_embeds": torch.zeros(129, 64)}, "too long: 129 rows > 128"),
    ({"prompt_embeds": torch.zeros(128, 64)}, "too long: 128 tokens > 127"),
    ({"prompt_embeds": object()}, "floating numbers"),
    ({"prompt_embeds": [[1.0], [1.0, 2.0]]}, "a tensor or an array"),
    ({"prompt_embeds": "no base64!"}, "base64"),
    ({"prompt_embeds": torch.zeros(3, 64), "prompt_token_ids": [1]}, "without prompt_token_ids"),
    ({"prompt_embeds": torch.zeros(3, 64), "multi_modal_data": {"image": []}}, "without multi_modal_data"),
    ({"prompt_embeds": torch.zeros(3, 64), "prompt": 7}, "prompt must be a string"),
]


@pytest.mark.parametrize(("prompt", "words"), REFUSED)
def test_refusals(llm, prompt, words):
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(prompt, use_tqdm=False)


@pytest.fixture(scope="module")
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        yield llm


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (SamplingParams(prompt_logprobs=1), "prompt_logprobs are of token ids"),
        (SamplingParams(truncate_prompt_tokens=2), "cannot be truncated"),
    ],
)
def test_what_does_not_go_with_rows(llm, embedded, params, words):
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(embedded[0], params, use_tqdm=False)


def test_rows_are_off_by_default(qwen3_folder, embedded):
    error = pytest.raises(InvalidRequestError, match="enable_prompt_embeds=True")
    with LLM(str(qwen3_folder), **OPTIONS | {"enable_prompt_embeds": False}) as llm, error:
        llm.generate(embedded[0], use_tqdm=False)


def test_models_that_need_ids(tmp_path):
    model = random_model("Gemma4", SIZES | {"vocab_size": 320} | CASES["Gemma4"].engine)
    save(model, tmp_path)
    write_tokenizer(tmp_path)
    with pytest.raises(UnsupportedError, match="enable_prompt_embeds is not there for Gemma4"):
        LLM(str(tmp_path), **OPTIONS)
    write_whisper(tmp_path / "whisper")
    with pytest.raises(UnsupportedError, match="enable_prompt_adapter.* is not there for Whisper"):
        LLM(str(tmp_path / "whisper"), enable_prompt_adapter=True)


def test_the_text_of_rows_is_shown(llm, embedded):
    [output] = llm.generate(embedded[0] | {"prompt": "what they say", "cache_salt": "mine"}, GREEDY, use_tqdm=False)
    assert output.prompt == "what they say"


def test_vectors_of_rows(qwen3_folder, embedded):
    with LLM(str(qwen3_folder), **OPTIONS | {"max_num_batched_tokens": 16, "max_num_seqs": 4}, convert="embed") as llm:
        found, truth = (llm.embed(prompts, use_tqdm=False) for prompts in (embedded, PROMPTS))
        for one, other in zip(found, truth, strict=True):
            assert one.outputs.embedding == pytest.approx(other.outputs.embedding, abs=1e-6)
