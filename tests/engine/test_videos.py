"""Prompts with videos in a whole engine: transformers' tokens, whatever else the engine does meanwhile."""

from functools import partial

import pytest
from engine.test_vision import GREEDY, NUM_TOKENS, OPTIONS
from kit.engine.scenes import WAYS, check_golden, golden_preempted
from kit.vision.checkpoint import picture, write_glm4v, write_idefics3, write_qwen_vl
from kit.vision.video import WORD, Video, continued, film, inputs, spelled

from lullm import LLM, SamplingParams
from lullm.errors import InvalidRequestError

SIZE = {"shortest_edge": 4 * 64, "longest_edge": 40 * 64}
PICTURE = picture(61, 40)
VIDEOS = [
    Video(film(5, 30, 22, seed=2), {"fps": 8.0, "total_num_frames": 9, "frames_indices": [0, 2, 4, 6, 8]}),
    Video(film(4, 50, 41, seed=3)),
    Video(film(5, 30, 22, seed=2), {"fps": 4.0, "total_num_frames": 9, "frames_indices": [0, 2, 4, 6, 8]}),
]
TEXTS = (
    ("hello world, the quick", (), ()),
    (f"USER: {WORD}\nwhat fox? ASSISTANT:", (0,), ()),
    (f"<image> jumps {WORD} over {WORD}the lazy dog", (1, 0), (PICTURE,)),
    # the same frames at another time
    (f"USER: {WORD}\nwhat fox? ASSISTANT:", (2,), ()),
)
WRITERS = {
    "qwen2.5": lambda folder: write_qwen_vl(folder, tower={"tokens_per_second": 4}),
    "qwen3": lambda folder: write_qwen_vl(folder, "Qwen3VL"),
    "glm4v": lambda folder: write_glm4v(folder, settings={"size": SIZE}),
}


@pytest.fixture(scope="module", params=WRITERS.values(), ids=WRITERS)
def checkpoint(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(checkpoint):
    return [golden(checkpoint, *each) for each in TEXTS]


def golden(checkpoint, text, shown, pictures):
    given = inputs(checkpoint, spelled(text, checkpoint), [VIDEOS[number] for number in shown], list(pictures), SIZE)
    return continued(checkpoint, given, NUM_TOKENS)


def prompts_of(checkpoint):
    given = [[VIDEOS[number].given for number in shown] for _, shown, _ in TEXTS]
    return [
        {"prompt": spelled(text, checkpoint), "multi_modal_data": {"video": videos, "image": list(pictures)}}
        for (text, _, pictures), videos in zip(TEXTS, given, strict=True)
    ]


@pytest.fixture(scope="module")
def prompts(checkpoint):
    return prompts_of(checkpoint)


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_as_transformers(checkpoint, prompts, expected, options):
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        for _ in range(2):  # the second time from cached prefixes
            check_golden(llm.generate(prompts, GREEDY, use_tqdm=False), expected)


OTHERS = {
    "qwen2": lambda folder: write_qwen_vl(folder, "Qwen2VL"),
    "qwen3, experts": lambda folder: write_qwen_vl(folder, "Qwen3VLMoe"),
    "qwen3.5": lambda folder: write_qwen_vl(folder, "Qwen3_5"),
    "glm4.5v": lambda folder: write_glm4v(folder, "Glm4vMoe", settings={"size": SIZE}),
    "glm4.6v": lambda folder: write_glm4v(folder, "Glm46V", settings={"size": SIZE}),
}


@pytest.mark.parametrize("write", OTHERS.values(), ids=OTHERS)
def test_others_of_these_kinds(tmp_path, write):
    checkpoint = write(tmp_path)
    with LLM(str(tmp_path), **OPTIONS, max_num_batched_tokens=20, max_num_seqs=2) as llm:
        outputs = llm.generate(prompts_of(checkpoint)[:3], GREEDY, use_tqdm=False)
    check_golden(outputs, [golden(checkpoint, *each) for each in TEXTS[:3]])


def test_preemption(checkpoint, prompts, expected):
    golden_preempted(partial(LLM, str(checkpoint.folder), **OPTIONS), prompts, GREEDY, expected, spare=0)


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_in_the_middle_of_videos(checkpoint, prompts, expected, level):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "enable_sleep_mode": True}
    with LLM(str(checkpoint.folder), **OPTIONS | options) as llm:
        engine, ended, num_steps = llm.llm_engine, {}, 0
        for number, prompt in enumerate(prompts):
            engine.add_request(str(number), prompt, GREEDY)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    ended[int(output.request_id)] = output
            num_steps += 1
            if num_steps in (3, 9):
                engine.sleep(level, mode="keep")
                engine.wake_up()
        check_golden([ended[number] for number in range(len(prompts))], expected)


def test_conversations(checkpoint):
    """Parts of messages, with the words of the chat template around them."""
    greedy = SamplingParams(temperature=0.0, max_tokens=4)
    parts = [
        {"type": "video", "video": VIDEOS[0].given},
        {"type": "image_pil", "image_pil": PICTURE},
        {"type": "text", "text": "what fox?"},
    ]
    with LLM(str(checkpoint.folder), **OPTIONS) as llm:
        [said] = llm.chat([{"role": "user", "content": parts}], greedy, use_tqdm=False)
        shown = spelled(WORD, checkpoint)
        shown = f"<|vision_start|>{WORD}<|vision_end|>" if shown == WORD else shown
        around = f"{shown}{checkpoint.word}what fox?"
        text = f"<|im_start|>user\n{around}<|im_end|>\n<|im_start|>assistant\n"
        asked = {"prompt": text, "multi_modal_data": {"video": VIDEOS[0].given, "image": PICTURE}}
        [written] = llm.generate(asked, greedy, use_tqdm=False)
        assert said.prompt_token_ids == written.prompt_token_ids
        assert said.outputs[0].token_ids == written.outputs[0].token_ids


REFUSED = [
    (WORD, {}, "1 places for videos .*, and 0 videos"),
    ("a", {"video": VIDEOS[1].frames}, "0 places for videos .*, and 1 videos"),
    (WORD * 3, {"video": [VIDEOS[1].frames] * 3}, "at most 2 videos .*, not 3"),
    (WORD, {"video": VIDEOS[1].frames[:0]}, "a video has no frames"),
    (WORD, {"video": "a.mp4"}, "not their addresses"),
    (WORD, {"video": 3}, "a video is an array of bytes"),
    (WORD, {"video": VIDEOS[1].frames.astype("float32")}, "bytes .uint8. from 0 to 255"),
    (WORD, {"video": [PICTURE, picture(9, 9)]}, "differ in size"),
    (WORD, {"video": (VIDEOS[1].frames, {"fps": 0})}, "fps of a video is a number above 0"),
    (WORD, {"video": (VIDEOS[1].frames, {"frames_indices": [1]})}, "4 frames, and frames_indices 1 numbers"),
    (WORD, {"video": (VIDEOS[1].frames, {"total_num_frames": 3})}, "total_num_frames .* at least its 4"),
    (WORD, {"video": (VIDEOS[1].frames, {"speed": 3})}, "hold fps, .*, not speed"),
    (WORD, {"video": film(200, 24, 24)}, "its frames alone take"),
]


def test_what_is_refused(tmp_path):
    write_qwen_vl(tmp_path)
    with LLM(str(tmp_path), **OPTIONS, limit_mm_per_prompt={"video": 2}) as llm:
        for text, data, reason in REFUSED:
            with pytest.raises(InvalidRequestError, match=reason):
                llm.generate({"prompt": text, "multi_modal_data": data}, GREEDY, use_tqdm=False)
        [output] = llm.generate({"prompt": WORD, "multi_modal_data": {"video": [PICTURE] * 3}}, GREEDY, use_tqdm=False)
        assert output.prompt_token_ids.count(output.prompt_token_ids[0]) == 2 * 40


def test_other_models_say_why(tmp_path):
    write_idefics3(tmp_path)
    asked = {"prompt": "a", "multi_modal_data": {"video": VIDEOS[1].frames}}
    reason = "takes no videos: lullm sees videos with Qwen2-VL, .* Idefics3"
    with LLM(str(tmp_path), **OPTIONS) as llm, pytest.raises(InvalidRequestError, match=reason):
        llm.generate(asked, GREEDY, use_tqdm=False)


def test_limits(tmp_path):
    write_qwen_vl(tmp_path)
    video = {"prompt": WORD, "multi_modal_data": {"video": VIDEOS[1].frames}}
    image = {"prompt": "<image>", "multi_modal_data": {"image": PICTURE}}
    for limits, taken, refused in (({"image": 0}, video, image), ({"video": 0}, image, video)):
        with LLM(str(tmp_path), **OPTIONS, limit_mm_per_prompt=limits) as llm:
            assert llm.generate(taken, GREEDY, use_tqdm=False)
            with pytest.raises(InvalidRequestError, match="at most 0 "):
                llm.generate(refused, GREEDY, use_tqdm=False)
    reason, none = "text only: limit_mm_per_prompt", {"image": 0, "video": 0}
    with LLM(str(tmp_path), **OPTIONS, limit_mm_per_prompt=none) as llm:
        with pytest.raises(InvalidRequestError, match=reason):
            llm.generate(video, GREEDY, use_tqdm=False)
        assert llm.generate("a", GREEDY, use_tqdm=False)
