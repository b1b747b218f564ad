"""Prompts with pictures, videos and sounds in one engine: transformers' tokens, whatever else the engine does."""

import json
from functools import partial

import numpy as np
import pytest
from kit.audio.checkpoint import sound
from kit.engine.scenes import GUESSING, WAYS, asleep_meanwhile, check_golden, golden_preempted, see_no_rows, tiles_sent
from kit.omni import SIZE, spelled, write_omni, write_published
from kit.vision.checkpoint import picture
from kit.vision.video import Video, film
from kit.worker.threads import use_threads

from lullm import LLM, SamplingParams
from lullm.errors import InvalidRequestError, ModelLoadError

FRAMES = {"videos_kwargs": {"size": SIZE}}
OPTIONS = {
    "dtype": "float32", "max_model_len": 512, "block_size": 8, "kv_cache_memory_bytes": 8 << 20,
    "mm_processor_kwargs": FRAMES,
}  # fmt: skip
NUM_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
PICTURES = [picture(61, 40), picture(28, 30, seed=1)]
VIDEOS = [
    Video(film(5, 30, 22, seed=2), {"fps": 8.0, "total_num_frames": 9, "frames_indices": [0, 2, 4, 6, 8]}),
    Video(film(4, 50, 41, seed=3)),
]
SOUNDS = [sound(0, 0.73), sound(1, 1.0), np.concatenate([sound(2), sound(3, 0.64)]), sound(4, 0.325)]
TEXTS = (
    ("hello world, the quick", (), (), ()),
    ("USER: <audio>\nwhat fox? ASSISTANT:", (), (), (0,)),
    ("<image> jumps over <audio>the lazy <image>dog <audio>", (0, 1), (), (1, 2)),
    ("a b c <audio><video> d <audio> <image>", (1,), (0,), (3, 0)),
    ("<video><video> what?", (), (1, 0), ()),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_omni(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(checkpoint):
    return [
        checkpoint.continued(
            NUM_TOKENS, text, [PICTURES[n] for n in seen], [VIDEOS[n] for n in films], [SOUNDS[n] for n in heard]
        )
        for text, seen, films, heard in TEXTS
    ]


def asked(text, seen=(), films=(), heard=()):
    data = {"image": [PICTURES[n] for n in seen], "video": [VIDEOS[n].given for n in films]}
    return {
        "prompt": spelled(text),
        "multi_modal_data": {**data, "audio": [(SOUNDS[n], 16000) for n in heard]},
    }


PROMPTS = [asked(*each) for each in TEXTS]


@pytest.mark.parametrize("options", (WAYS | GUESSING).values(), ids=WAYS | GUESSING)
def test_as_transformers(checkpoint, expected, options):
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        sent, _ = tiles_sent(llm)
        for _ in range(2):  # the second time from cached prefixes
            check_golden(llm.generate(PROMPTS, GREEDY, use_tqdm=False), expected)
        if options.get("enable_prefix_caching", True) and "max_num_batched_tokens" not in options:
            assert len(sent) == len(set(sent))  # each is read once
        check_golden([llm.generate(PROMPTS[3], GREEDY, use_tqdm=False)[0]], [expected[3]])


@pytest.mark.parametrize("name", ["Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"])
def test_beside_what_speaks(checkpoint, expected, tmp_path, name, caplog):
    write_published(tmp_path / "model", checkpoint, name)
    caplog.set_level("INFO", "lullm")
    with LLM(str(tmp_path / "model"), **OPTIONS) as llm:
        check_golden(llm.generate(PROMPTS, GREEDY, use_tqdm=False), expected)
    assert "what speaks is passed over" in caplog.text


def test_preemption(checkpoint, expected):
    golden_preempted(partial(LLM, str(checkpoint.folder), **OPTIONS), PROMPTS, GREEDY, expected)


@pytest.mark.parametrize("backend", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["tp", "pp"])
def test_several_workers(checkpoint, expected, monkeypatch, backend):
    use_threads(monkeypatch)
    with LLM(str(checkpoint.folder), **OPTIONS, **backend, max_num_batched_tokens=40, max_num_seqs=8) as llm:
        check_golden(llm.generate(PROMPTS, GREEDY, use_tqdm=False), expected)


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_in_the_middle(checkpoint, expected, level):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "enable_sleep_mode": True}
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        check_golden(asleep_meanwhile(llm, PROMPTS, GREEDY, {"level": level}, look=see_no_rows(llm)), expected)


def test_other_rates_of_frames(checkpoint):
    """A request's fps tells the time between tiles, as in transformers."""
    video = Video(
        VIDEOS[0].frames, {"fps": 8.0, "total_num_frames": 5, "frames_indices": range(5)}, {"fps": 3.0, "min_frames": 2}
    )
    expected = checkpoint.continued(NUM_TOKENS, "<video> what?", videos=[video])
    prompt = {"prompt": spelled("<video> what?"), "multi_modal_data": {"video": video.given}}
    prompt["mm_processor_kwargs"] = video.sampling
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        check_golden(llm.generate(prompt, GREEDY, use_tqdm=False), [expected])


def test_conversations(checkpoint):
    parts = [
        {"type": "video", "video": VIDEOS[0].given},
        {"type": "audio", "audio": SOUNDS[0]},
        {"type": "image_pil", "image_pil": PICTURES[0]},
        {"type": "text", "text": "what fox?"},
    ]
    text = "<|im_start|>user\n<video><audio><image>what fox?<|im_end|>\n<|im_start|>assistant\n"
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        outputs = llm.chat([{"role": "user", "content": parts}], GREEDY, use_tqdm=False)
    check_golden(outputs, [checkpoint.continued(NUM_TOKENS, text, PICTURES[:1], VIDEOS[:1], SOUNDS[:1])])


@pytest.mark.parametrize("off", ["image", "audio"])
def test_one_of_the_two_alone(checkpoint, expected, off):
    limits = {"image": 0, "video": 0} if off == "image" else {"audio": 0}
    kept, reason = (1, "takes text only: limit_mm") if off == "image" else (4, "takes no sounds: limit_mm")
    options = OPTIONS | ({"mm_processor_kwargs": {}} if off == "image" else {})
    with LLM(str(checkpoint.folder), **options, limit_mm_per_prompt=limits) as llm:
        [names] = llm.collective_rpc(lambda worker: [n for n, _ in worker.loaded.model.named_parameters()])
        parts = {name.partition(".")[0] for name in names}
        assert parts & {"vision", "hearing"} == ({"hearing"} if off == "image" else {"vision"})
        check_golden(llm.generate(PROMPTS[kept], GREEDY, use_tqdm=False), [expected[kept]])
        with pytest.raises(InvalidRequestError, match=reason):
            llm.generate(PROMPTS[2], GREEDY, use_tqdm=False)


def test_prefixes_are_shared_by_equal_sounds_only(checkpoint):
    other = sound(7, 0.73)

    def ask(given):
        prompt = asked(TEXTS[3][0], TEXTS[3][1], TEXTS[3][2])
        prompt["multi_modal_data"]["audio"] = given
        [output] = llm.generate(prompt, GREEDY, use_tqdm=False)
        return output.num_cached_tokens, output.outputs[0].cumulative_logprob

    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        (none, first), (found, same) = (ask([SOUNDS[3], SOUNDS[0]]) for _ in range(2))
        assert none == 0 < found and same == first
        fewer, different = ask([SOUNDS[3], other])
        assert 0 < fewer < found and different != first


REFUSED = [
    ("<audio>", {}, {}, "1 places for sounds .*, and 0 sounds"),
    ("<audio><image>", {"audio": SOUNDS[0]}, {}, "1 places for pictures .*, and 0 pictures"),
    ("<audio>", {"audio": np.zeros(2 * 16_001, np.float32)}, {}, "the model hears 2 s at once"),
    ("<audio>", {"audio": SOUNDS[0]}, {"max_pixels": 800}, "mm_processor_kwargs are for pictures"),
    ("<video>", {"video": VIDEOS[1].given, "audio": SOUNDS[0]}, {"use_audio_in_video": True}, "use_audio_in_video"),
]


@pytest.mark.parametrize(("text", "data", "settings", "reason"), REFUSED, ids=str)
def test_what_is_refused(limited, text, data, settings, reason):
    prompt = {"prompt": spelled(text), "multi_modal_data": data, "mm_processor_kwargs": settings or None}
    with pytest.raises(InvalidRequestError, match=reason):
        limited.generate(prompt, GREEDY, use_tqdm=False)


@pytest.fixture(scope="module")
def limited(checkpoint):
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        yield llm


def test_a_folder_without_what_thinks(checkpoint, tmp_path):
    write_published(tmp_path, checkpoint)
    data = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({key: data[key] for key in data if key != "thinker_config"}))
    with pytest.raises(ModelLoadError, match="Qwen2_5OmniModel without a thinker_config"):
        LLM(str(tmp_path), **OPTIONS)
