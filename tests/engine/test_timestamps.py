"""Times of what is said, in a whole engine: transformers' tokens and their log-probabilities."""

import json

import pytest
from kit.audio.checkpoint import FIRST_TIME, TIMED_IDS, sound, write_timed_whisper, write_whisper
from kit.engine.parts import block_space_of
from kit.engine.scenes import WAYS

from lullm import LLM, SamplingParams
from lullm.errors import InvalidRequestError, ModelLoadError

OPTIONS = {"dtype": "float32", "max_model_len": 64, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
NUM_TOKENS = 24
TIMED = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, timestamps=True, logprobs=0)
START = [TIMED_IDS[word] for word in ("startoftranscript", "en", "transcribe")]
SOUNDS = [sound(number, 0.3 + 0.1 * number) for number in range(5)]
PROMPTS = [{"prompt_token_ids": START, "multi_modal_data": {"audio": heard}} for heard in SOUNDS]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return write_timed_whisper(tmp_path_factory.mktemp("whisper"), 3, max_initial_timestamp_index=5)


@pytest.fixture(scope="module")
def expected(whisper):
    return [whisper.timed(heard, NUM_TOKENS) for heard in SOUNDS]


def check(outputs, expected):
    for output, (tokens, total) in zip(outputs, expected, strict=True):
        [completion] = output.outputs
        assert list(completion.token_ids) == tokens
        assert completion.cumulative_logprob == pytest.approx(total, abs=2e-3)


OWN_WAYS = WAYS | {
    "chunks": {"max_num_batched_tokens": 12, "max_num_seqs": 4},
    "torch": {"attention_backend": "torch"},
    "preemption": {"num_gpu_blocks_override": 90, "block_size": 2, "max_num_batched_tokens": 24, "max_num_seqs": 8},
}


@pytest.mark.parametrize("options", OWN_WAYS.values(), ids=OWN_WAYS)
def test_as_transformers(whisper, expected, options):
    with LLM(str(whisper.folder), **OPTIONS | options) as llm:
        for _ in range(2):  # the second time from cached blocks
            check(llm.generate(PROMPTS, TIMED, use_tqdm=False), expected)
        block_space_of(llm).check_conservation()
        if "num_gpu_blocks_override" in options:
            assert sum(llm.llm_engine.stats().preemptions_total.values()) > 0
    assert all(tokens[0] in range(FIRST_TIME, FIRST_TIME + 6) for tokens, _ in expected)


def test_sleep_in_the_middle(whisper, expected):
    with LLM(str(whisper.folder), **OPTIONS, enable_sleep_mode=True) as llm:
        engine, ended, num_steps = llm.llm_engine, {}, 0
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(str(number), prompt, TIMED)
        while engine.has_unfinished_requests():
            ended |= {output.request_id: output for output in engine.step() if output.finished}
            num_steps += 1
            if num_steps in (3, 9):
                llm.sleep(level=1, mode="keep")
                llm.wake_up()
        check([ended[key] for key in sorted(ended)], expected)


def test_drawn_outputs_keep_the_rules(whisper):
    params = TIMED.replace(temperature=1.0, seed=4, n=3, min_tokens=9, repetition_penalty=1.1)
    with LLM(str(whisper.folder), **OPTIONS) as llm:
        for output in llm.generate(PROMPTS, params, use_tqdm=False):
            for completion in output.outputs:
                times = [token for token in completion.token_ids if token >= FIRST_TIME]
                assert completion.token_ids[0] == times[0] <= FIRST_TIME + 5 and times == sorted(times)
                assert TIMED_IDS["notimestamps"] not in completion.token_ids
        plain = llm.generate(PROMPTS, TIMED.replace(timestamps=False), use_tqdm=False)
        assert any(output.outputs[0].token_ids[0] < FIRST_TIME for output in plain)


def test_the_tokenizers_word_goes_before_a_number(whisper, tmp_path):
    """Files that were copied from a model with other languages name a neighbour."""
    for path in whisper.folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    values = json.loads((whisper.folder / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").write_text(json.dumps(values | {"no_timestamps_token_id": FIRST_TIME - 2}))
    with LLM(str(tmp_path), **OPTIONS) as llm:
        check(llm.generate(PROMPTS[:1], TIMED, use_tqdm=False), [whisper.timed(SOUNDS[0], NUM_TOKENS)])
    (tmp_path / "generation_config.json").write_text(json.dumps(values | {"max_initial_timestamp_index": "1 s"}))
    with pytest.raises(ModelLoadError, match="max_initial_timestamp_index must be an integer"):
        LLM(str(tmp_path), **OPTIONS)


def test_what_is_refused(whisper, tmp_path):
    with LLM(str(whisper.folder), **OPTIONS) as llm:
        untimed = {"prompt_token_ids": [*START, FIRST_TIME - 1], "multi_modal_data": {"audio": SOUNDS[0]}}
        for prompt, changes, reason in [
            (untimed, {}, "ends with"),
            (PROMPTS[0], {"allowed_token_ids": [4]}, "allowed_token_ids cannot be combined"),
            (PROMPTS[0], {"beam_width": 2, "logprobs": None}, "beam_width cannot be combined"),
        ]:
            with pytest.raises(InvalidRequestError, match=reason):
                llm.generate(prompt, TIMED.replace(**changes), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="timestamps must be true or false"):
        SamplingParams(timestamps=1)
    write_whisper(tmp_path, vocab_size=8)
    with LLM(str(tmp_path), **OPTIONS) as llm, pytest.raises(InvalidRequestError, match="this model has none"):
        llm.generate(PROMPTS[0] | {"prompt_token_ids": [1, 2, 5]}, TIMED, use_tqdm=False)
    with LLM() as llm, pytest.raises(InvalidRequestError, match="this model has none"):
        llm.generate("hello", SamplingParams(timestamps=True), use_tqdm=False)
