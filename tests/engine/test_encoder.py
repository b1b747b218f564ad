"""Sounds in a whole engine: transformers' tokens, whatever else the engine does meanwhile."""

import dataclasses
import json

import numpy as np
import pytest
from kit.audio.checkpoint import NUM_ROWS, RATE, sound, write_whisper
from kit.engine.parts import block_space_of, executor_of, runner_of
from kit.engine.same_tokens import check_continued
from kit.engine.scenes import WAYS, asleep_meanwhile, check_preempted

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, InvalidRequestError, UnsupportedError

OPTIONS = {"dtype": "float32", "max_model_len": 64, "block_size": 8, "kv_cache_memory_bytes": 8 << 20}
NUM_TOKENS = 10
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
STARTS = ([1, 2, 5, 7], [1], [6, *range(20, 37), 1, 2, 4, 7], [1, 3])
SOUNDS = [sound(0), sound(1, 0.4), sound(2, 0.7), sound(0, 0.05)]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def expected(whisper):
    return [whisper.continued(heard, ids, NUM_TOKENS) for heard, ids in zip(SOUNDS, STARTS, strict=True)]


def prompt_of(ids, heard, rate=RATE):
    return {"prompt_token_ids": ids, "multi_modal_data": {"audio": (heard, rate)}}


PROMPTS = [prompt_of(ids, heard) for ids, heard in zip(STARTS, SOUNDS, strict=True)]


OWN_WAYS = WAYS | {
    "chunks": {"max_num_batched_tokens": 12, "max_num_seqs": 4},
    "prefill first": {"enable_chunked_prefill": False, "max_num_batched_tokens": 120, "max_num_seqs": 8},
    "torch": {"attention_backend": "torch"},
}


@pytest.mark.parametrize("options", OWN_WAYS.values(), ids=OWN_WAYS)
def test_as_transformers(whisper, expected, options):
    with LLM(str(whisper.folder), **OPTIONS | options) as llm:
        for _ in range(2):  # the second time from cached blocks
            check_continued(STARTS, llm.generate(PROMPTS, GREEDY, use_tqdm=False), expected)
        block_space_of(llm).check_conservation()


def test_128_bands_and_a_decoder_of_other_depth(tmp_path):
    whisper = write_whisper(tmp_path, 3, num_mel_bins=128, encoder_layers=3, decoder_layers=1)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        [output] = llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
    check_continued(STARTS, [output], [whisper.continued(SOUNDS[0], STARTS[0], NUM_TOKENS)])


def test_a_sound_is_read_once_and_shared(whisper, expected):
    with LLM(str(whisper.folder), **OPTIONS) as llm:
        sent = []
        launch = executor_of(llm).launch_model
        executor_of(llm).launch_model = lambda plan: sent.extend(plan.tiles) or launch(plan)
        several = [prompt_of(STARTS[2], SOUNDS[2])] * 3
        first = llm.generate(several, GREEDY, use_tqdm=False)
        again = llm.generate(several[:1], GREEDY, use_tqdm=False)
        assert len(sent) == 1
        # Places of the encoder's rows are no tokens.
        assert [output.num_cached_tokens for output in (first[0], again[0])] == [0, 16]
        [other] = llm.generate(prompt_of(STARTS[2], SOUNDS[0]), GREEDY, use_tqdm=False)
        assert len(sent) == 2 and other.num_cached_tokens == 0
        assert llm.llm_engine.stats().prompt_tokens_total == 5 * len(STARTS[2])


def test_decodes_are_recorded(whisper, expected):
    with LLM(str(whisper.folder), **OPTIONS) as llm:
        check_continued(STARTS, llm.generate(PROMPTS, GREEDY, use_tqdm=False), expected)
        graphs = runner_of(llm).graphs
        assert graphs.refusal is None and graphs.sizes


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption(whisper, expected, mode):
    num_blocks = 2 * (NUM_ROWS // 2 + 1) + 2 * len(STARTS[2])
    options = {"num_gpu_blocks_override": num_blocks, "block_size": 2, "max_num_batched_tokens": 24, "max_num_seqs": 8}
    options |= {"max_model_len": 40, "watermark": 0.0}
    with LLM(str(whisper.folder), **OPTIONS | options, preemption_mode=mode) as llm:
        check_continued(STARTS, llm.generate(PROMPTS * 2, GREEDY, use_tqdm=False), expected * 2)
        check_preempted(llm)


@pytest.mark.parametrize("call", [{"level": 1}, {"level": 2}, {"level": 2, "tags": ["weights"]}], ids=str)
def test_sleep_in_the_middle_of_sounds(whisper, expected, call):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "enable_sleep_mode": True}
    with LLM(str(whisper.folder), **OPTIONS | options) as llm:
        outputs = asleep_meanwhile(llm, PROMPTS, GREEDY, call)
        check_continued(STARTS, outputs, expected)


def test_hibernation_in_the_middle_of_sounds(whisper, expected, tmp_path):
    options = OPTIONS | {"max_num_batched_tokens": 20, "max_num_seqs": 4}
    with LLM(str(whisper.folder), **options) as llm:
        for number, prompt in enumerate(PROMPTS):
            llm.llm_engine.add_request(str(number), prompt, GREEDY)
        for _ in range(11):
            llm.llm_engine.step()
        llm.hibernate(str(tmp_path / "there"))
    with LLM(str(whisper.folder), **options) as llm:
        llm.resume(str(tmp_path / "there"))
        outputs = llm.wait_for_completion(use_tqdm=False)
    check_continued(STARTS, sorted(outputs, key=lambda output: output.request_id), expected)


def test_a_worker_in_a_process(whisper, expected):
    with LLM(str(whisper.folder), **OPTIONS, distributed_executor_backend="mp", enable_sleep_mode=True) as llm:
        llm.sleep(1)
        llm.wake_up()
        check_continued(STARTS, llm.generate(PROMPTS, GREEDY, use_tqdm=False), expected)


def test_forks_and_beams(whisper):
    prompt = PROMPTS[2]
    drawn = SamplingParams(temperature=1.0, n=3, seed=5, max_tokens=6, ignore_eos=True)
    beams = SamplingParams(n=3, beam_width=3, max_tokens=6, ignore_eos=True)
    found = []
    for options in ({"max_num_batched_tokens": 32}, {"enable_prefix_caching": False, "enforce_eager": True}):
        with LLM(str(whisper.folder), **OPTIONS | options, max_num_seqs=8) as llm:
            outputs = [*llm.generate(prompt, drawn, use_tqdm=False), *llm.generate(prompt, beams, use_tqdm=False)]
            found.append([[completion.token_ids for completion in output.outputs] for output in outputs])
    assert found[0] == found[1]
    assert all(len(set(map(tuple, several))) > 1 for several in found[0])


def test_prompt_logprobs_and_penalties_see_the_prompt_alone(whisper):
    import torch

    ids, heard = STARTS[2], SOUNDS[2]
    with torch.inference_mode():
        given = {"input_features": whisper.features(heard), "decoder_input_ids": torch.tensor([ids])}
        rows = whisper.model(**given).logits[0].log_softmax(-1)
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, repetition_penalty=1e4)
    for options in ({}, {"max_num_batched_tokens": 9, "max_num_seqs": 2}):
        with LLM(str(whisper.folder), **OPTIONS | options) as llm:
            [output] = llm.generate(prompt_of(ids, heard), params, use_tqdm=False)
        assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(ids)
        found = [row[token].logprob for row, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)]
        assert found == pytest.approx([float(rows[at, token]) for at, token in enumerate(ids[1:])], abs=1e-4)
        [drawn] = output.outputs[0].token_ids
        assert drawn not in ids
        # 0 is the id in the places of the encoder's rows, and not penalized
        best = next(token for token in rows[-1].argsort(descending=True).tolist() if token not in ids)
        assert drawn == best


def test_the_model_length_counts_tokens_of_the_decoder(whisper):
    params = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True)
    with LLM(str(whisper.folder), **OPTIONS) as llm:
        [output] = llm.generate(PROMPTS[:1], params, use_tqdm=False)
        assert output.outputs[0].finish_reason == "length"
        assert len(STARTS[0]) + len(output.outputs[0].token_ids) == OPTIONS["max_model_len"]
        with pytest.raises(InvalidRequestError, match="too long: 64 tokens > 63"):
            llm.generate(prompt_of([1] * 64, SOUNDS[0]), params, use_tqdm=False)


def test_suppressed_tokens(whisper, expected, tmp_path):
    """As transformers' generate: some never, some not as the first."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in whisper.folder.iterdir():
        (folder / path.name).symlink_to(path)
    [(tokens, _)] = expected[:1]
    (folder / "generation_config.json").unlink()
    values = {"eos_token_id": 0, "suppress_tokens": tokens[3:5], "begin_suppress_tokens": [tokens[0]]}
    (folder / "generation_config.json").write_text(json.dumps(values))
    first, _ = whisper.continued(SOUNDS[0], STARTS[0], 1, (*tokens[3:5], tokens[0]))
    rest, _ = whisper.continued(SOUNDS[0], STARTS[0] + first, NUM_TOKENS - 1, tuple(tokens[3:5]))
    with LLM(str(folder), **OPTIONS) as llm:
        [output] = llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
        assert list(output.outputs[0].token_ids) == first + rest
        [beams] = llm.generate(PROMPTS[:1], SamplingParams(n=4, beam_width=4, max_tokens=5), use_tqdm=False)
        for completion in beams.outputs:
            assert tokens[0] != completion.token_ids[0] and not set(tokens[3:5]) & set(completion.token_ids)
    with LLM(str(folder), **OPTIONS, generation_config="vllm") as llm:
        [output] = llm.generate(PROMPTS[:1], dataclasses.replace(GREEDY), use_tqdm=False)
        assert list(output.outputs[0].token_ids) == tokens


def test_forms_of_prompts(whisper, expected):
    words = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
    heard = SOUNDS[0]
    fast = np.repeat(heard, 3)  # of 48 kHz
    with LLM(str(whisper.folder), **OPTIONS) as llm:
        same = [
            {"prompt": words, "multi_modal_data": {"audio": (heard, RATE)}},
            {"prompt": words, "multi_modal_data": {"audio": heard}},
            {"prompt": words, "multi_modal_data": {"audio": [(heard.astype(np.float64), 16000.0)]}},
            {"encoder_prompt": {"prompt": "", "multi_modal_data": {"audio": (heard, RATE)}}, "decoder_prompt": words},
            {
                "encoder_prompt": {"multi_modal_data": {"audio": heard}},
                "decoder_prompt": {"prompt_token_ids": STARTS[0]},
            },
        ]
        for output in llm.generate(same, GREEDY, use_tqdm=False):
            check_continued(STARTS, [output], expected[:1])
        [other] = llm.generate(prompt_of(STARTS[0], fast, 48_000), GREEDY, use_tqdm=False)
        assert other.prompt_token_ids == STARTS[0]
        for prompt, reason in [
            (words, "no sound"),
            ({"prompt": words, "multi_modal_data": {"image": heard}}, "takes 'audio' only"),
            (prompt_of([1], np.zeros((2, 100), np.float32)), "one channel"),
            (prompt_of([1], np.zeros(100, np.int16)), "divide those of int16 by 32768"),
            (prompt_of([1], np.zeros(0, np.float32)), "no samples"),
            (prompt_of([1], np.full(9, np.nan, np.float32)), "not finite"),
            (prompt_of([1], sound(0, 1.01)), "the model hears 1 s at once"),
            (prompt_of([1], heard, 0), "a sampling rate"),
            (prompt_of([1], heard, "fast"), "a sampling rate"),
            ({"prompt": words, "multi_modal_data": {"audio": [heard, heard]}}, "one sound, not 2"),
            (same[0] | {"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
            ({"encoder_prompt": "text", "decoder_prompt": words}, "encoder_prompt is"),
            ({"encoder_prompt": {"prompt": "text"}, "decoder_prompt": words}, "sound and no text"),
            ({"encoder_prompt": {}, "decoder_prompt": None}, "decoder_prompt is missing"),
            ({"encoder_prompt": {}, "decoder_prompt": words}, "no sound"),
            (same[3] | {"prompt": words}, "holds encoder_prompt and decoder_prompt only"),
        ]:
            with pytest.raises(InvalidRequestError, match=reason):
                llm.generate(prompt, GREEDY, use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="no conversation"):
            llm.chat([{"role": "user", "content": "hello"}], GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"enable_lora": True},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        {"runner": "pooling"},
        {"convert": "embed"},
        {"kv_cache_dtype": "fp8"},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 100, "max_num_seqs": 8},
        {"max_model_len": 65},
        {"limit_mm_per_prompt": {"audio": 0}},
        {"language_model_only": True},
    ],
    ids=str,
)
def test_options_that_are_not_there(whisper, options):
    with pytest.raises((ConfigError, UnsupportedError)):
        LLM(str(whisper.folder), **OPTIONS | options)
