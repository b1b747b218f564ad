"""What tokens attend to in a sound, in a whole engine: transformers' weights, however the engine computes them."""

import json

import numpy as np
import pytest
from kit.audio.checkpoint import TIMED_IDS, sound, write_timed_whisper
from kit.engine.parts import block_space_of

from lullm import LLM, PoolingParams, SamplingParams
from lullm.errors import InvalidRequestError, ModelLoadError

OPTIONS = {"dtype": "float32", "max_model_len": 64, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
HEADS = [[1, 3], [0, 1], [1, 0]]
START = [TIMED_IDS[word] for word in ("startoftranscript", "en", "transcribe")]
SOUNDS = [sound(number, 0.3 + 0.1 * number) for number in range(5)]
TOKENS = [[*START, *range(40 + number, 60 + 3 * number)] for number in range(5)]
PROMPTS = [
    {"prompt_token_ids": ids, "multi_modal_data": {"audio": heard}} for ids, heard in zip(TOKENS, SOUNDS, strict=True)
]
ALIGN = PoolingParams(task="align", align_from=len(START))


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return write_timed_whisper(tmp_path_factory.mktemp("whisper"), 3, alignment_heads=HEADS)


@pytest.fixture(scope="module")
def expected(whisper):
    pairs = zip(SOUNDS, TOKENS, strict=True)
    return [whisper.attended(heard, ids, HEADS)[len(START) :].flatten(1).numpy() for heard, ids in pairs]


def check(outputs, expected, atol=2e-6):
    for output, weights in zip(outputs, expected, strict=True):
        found = np.asarray(output.outputs.data)
        assert found.shape == weights.shape and found.dtype == np.float32
        np.testing.assert_allclose(found, weights, atol=atol)


def run(engine, ended, num_steps=1000):
    """Steps until nothing is left, or so many; what has ended, by its id, goes into `ended`."""
    for _ in range(num_steps):
        if not engine.has_unfinished_requests():
            return
        ended |= {output.request_id: output for output in engine.step() if output.finished}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 12, "max_num_seqs": 4},
        {"enable_prefix_caching": False, "enforce_eager": True, "block_size": 16},
        {"attention_backend": "torch"},
        {"num_gpu_blocks_override": 60, "block_size": 2, "max_num_batched_tokens": 24, "max_num_seqs": 8},
        {"distributed_executor_backend": "mp"},
    ],
    ids=["whole", "chunks", "bare", "torch", "few-blocks", "mp"],
)
def test_as_transformers(whisper, expected, options):
    with LLM(str(whisper.folder), **OPTIONS | options) as llm:
        for _ in range(2):  # the second time with what is cached
            check(llm.encode(PROMPTS, ALIGN, use_tqdm=False), expected)
        every = llm.encode(PROMPTS, PoolingParams(), pooling_task="align", use_tqdm=False)
        check([output.of(type(output.outputs)(output.outputs.data[len(START) :])) for output in every], expected)
        if "distributed_executor_backend" not in options:
            block_space_of(llm).check_conservation()


def test_beside_texts(whisper, expected):
    """In the steps of requests that draw tokens, which stay as they are."""
    params = SamplingParams(temperature=0.0, max_tokens=16, timestamps=True)
    prompts = [prompt | {"prompt_token_ids": START} for prompt in PROMPTS]
    with LLM(str(whisper.folder), **OPTIONS) as llm:
        alone = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
        engine, ended = llm.llm_engine, {}
        for number, (prompt, aligned) in enumerate(zip(prompts, PROMPTS, strict=True)):
            engine.add_request(f"text {number}", prompt, params)
            run(engine, ended, 1)
            engine.add_request(f"rows {number}", aligned, ALIGN)
        run(engine, ended)
        check([ended[f"rows {number}"] for number in range(5)], expected)
        assert [list(ended[f"text {number}"].outputs[0].token_ids) for number in range(5)] == alone


def test_what_is_cached_is_not_computed_again(whisper):
    """The sound, and the text before the rows: only their blocks hold nothing that is wanted."""
    earlier = [TIMED_IDS["startofprev"], *range(70, 90), *START]
    prompt = {"prompt_token_ids": [*earlier, *range(40, 50)], "multi_modal_data": {"audio": SOUNDS[0]}}
    params = PoolingParams(task="align", align_from=len(earlier))
    golden = whisper.attended(SOUNDS[0], prompt["prompt_token_ids"], HEADS)[len(earlier) :].flatten(1).numpy()
    with LLM(str(whisper.folder), **OPTIONS) as llm:
        for num_cached in (0, len(earlier) // 8 * 8):
            [output] = llm.encode(prompt, params, use_tqdm=False)
            check([output], [golden])
            assert output.num_cached_tokens == num_cached


def test_an_int8_cache(whisper, expected):
    with LLM(str(whisper.folder), **OPTIONS, kv_cache_dtype="int8") as llm:
        check(llm.encode(PROMPTS, ALIGN, use_tqdm=False), expected, atol=0.05)


@pytest.mark.parametrize("is_hibernated", [False, True], ids=["asleep", "hibernated"])
def test_a_sleep_in_the_middle(whisper, expected, tmp_path, is_hibernated):
    options = OPTIONS | {"max_num_batched_tokens": 12, "max_num_seqs": 4, "enable_sleep_mode": True}
    with LLM(str(whisper.folder), **options) as llm:
        engine, ended = llm.llm_engine, {}
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(str(number), prompt, ALIGN)
        run(engine, ended, 9)
        assert len(ended) < len(PROMPTS)
        if is_hibernated:
            engine.hibernate(str(tmp_path / "image"))
        else:
            llm.sleep(level=1, mode="keep")
            llm.wake_up()
            run(engine, ended)
    if is_hibernated:
        with LLM(str(whisper.folder), **options) as llm:
            llm.llm_engine.resume(str(tmp_path / "image"))
            run(llm.llm_engine, ended)
    check([ended[key] for key in sorted(ended)], expected)


def with_heads(whisper, folder, heads):
    for path in whisper.folder.iterdir():
        (folder / path.name).symlink_to(path)
    values = json.loads((whisper.folder / "generation_config.json").read_text())
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(json.dumps(values | {"alignment_heads": heads}))
    return str(folder)


@pytest.mark.parametrize(
    ("heads", "reason"), [(None, "has no alignment_heads"), ([[0, 0], [2, 1]], "head 1 of layer 2")]
)
def test_heads_that_are_not_there(whisper, tmp_path, heads, reason):
    with LLM(with_heads(whisper, tmp_path, heads), **OPTIONS) as llm:
        with pytest.raises(InvalidRequestError, match=reason):
            llm.encode(PROMPTS, ALIGN, use_tqdm=False)
        assert llm.generate(PROMPTS[0], SamplingParams(max_tokens=2), use_tqdm=False)[0].finished


@pytest.mark.parametrize("heads", [7, [1, 2], [[0, 1, 2]], [[0, -1]], [[0, True]], [["0", 1]]], ids=str)
def test_heads_that_are_none(whisper, tmp_path, heads):
    with pytest.raises(ModelLoadError, match="alignment_heads must be"):
        LLM(with_heads(whisper, tmp_path, heads), **OPTIONS)


def test_the_option_for_defaults_does_not_hide_heads(whisper, expected):
    with LLM(str(whisper.folder), **OPTIONS, generation_config="vllm") as llm:
        check(llm.encode(PROMPTS, ALIGN, use_tqdm=False), expected)


def test_what_is_refused(whisper):
    with LLM(str(whisper.folder), **OPTIONS) as llm:
        for prompt, params, reason in [
            (PROMPTS[0], {"align_from": len(TOKENS[0])}, "leaves nothing"),
            (PROMPTS[0], {"dimensions": 4}, "dimensions does not go with"),
            (PROMPTS[0], {"truncate_prompt_tokens": 4}, "truncate_prompt_tokens does not go with"),
            ({"prompt_token_ids": TOKENS[0]}, {}, "the prompt has no sound"),
        ]:
            with pytest.raises(InvalidRequestError, match=reason):
                llm.encode(prompt, PoolingParams(task="align", **params), use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="embed"):
            llm.encode(PROMPTS[0], PoolingParams(task="embed"), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="align_from must be"):
        PoolingParams(align_from=-1)
    with LLM() as llm, pytest.raises(InvalidRequestError, match="'align' is for a Whisper"):
        llm.encode("hello", PoolingParams(task="align"), use_tqdm=False)
    with LLM(convert="embed") as llm, pytest.raises(InvalidRequestError, match="align_from is for the task"):
        llm.encode("hello", PoolingParams(align_from=1), use_tqdm=False)
