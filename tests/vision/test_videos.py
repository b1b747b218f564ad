"""Videos beside transformers: the same tokens, frames, positions, and rows of the tower."""

import dataclasses
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kit.vision.checkpoint import picture, write_glm4v, write_qwen_vl
from kit.vision.own import Own
from kit.vision.video import WORD, Video, film, inputs, processor_of, read, spelled

from lullm.arena.host import HostArena
from lullm.config.vision.video_reading import read_form
from lullm.errors import ConfigError, InvalidRequestError
from lullm.models.registry import build_model
from lullm.ops.selection import NATIVE_CPU_OPS
from lullm.step.vision.planes import plane_positions
from lullm.types.vision.tile import TileRows, shift_at
from lullm.vision.film import film_of
from lullm.vision.frame_tiling import developed, frame_size, wound
from lullm.vision.pixels import pixel_values
from lullm.vision.sampling import sampled
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes
from lullm.weights.packing import pack_weights

SIZE = {"shortest_edge": 4 * 64, "longest_edge": 40 * 64}
CASES = {
    "qwen2": lambda folder: write_qwen_vl(folder, "Qwen2VL"),
    "qwen2, single frames": lambda folder: write_qwen_vl(
        folder, "Qwen2VL", {"temporal_patch_size": 1}, {"temporal_patch_size": 1}
    ),
    "qwen2.5": lambda folder: write_qwen_vl(folder, tower={"tokens_per_second": 2}),
    "qwen3": lambda folder: write_qwen_vl(folder, "Qwen3VL"),
    "qwen3.5": lambda folder: write_qwen_vl(folder, "Qwen3_5"),
    "glm4v": lambda folder: write_glm4v(folder, settings={"size": SIZE}),
    "glm4.5v": lambda folder: write_glm4v(folder, "Glm4vMoe", settings={"size": SIZE}),
    "glm4.6v": lambda folder: write_glm4v(folder, "Glm46V", settings={"size": SIZE}),
}
VIDEOS = [
    Video(film(5, 30, 22), {"fps": 8.0, "total_num_frames": 9, "frames_indices": [0, 2, 4, 6, 8]}),
    Video(film(4, 50, 41, seed=1)),
    Video(film(8, 24, 24, seed=2), {"fps": 3.7}),
    Video(film(1 + 1, 7, 150, seed=3)),
]
TEXTS = [
    (f"hello {WORD} the quick\nfox", [0], []),
    (f"{WORD}{WORD}<image>", [1, 2], [0]),
    (f"a <image> b {WORD} c <image>", [3], [0, 1]),
]


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request, tmp_path_factory):
    return CASES[request.param](tmp_path_factory.mktemp("model"))


def taken(own, text, videos, pictures=(), settings=None):
    """(the ids, the places of tiles)."""
    data = {"video": videos, "image": list(pictures)}
    prompt, shown = own.pictures.take(
        {"prompt": text, "multi_modal_data": data, "mm_processor_kwargs": settings}, may_block=True
    )
    return own.pictures.place(own.tokenizer.encode(prompt["prompt"]), shown)


def planes_of(num_tokens, places):
    """The positions of one span of a whole prompt, and of one for each token."""
    whole = [(0, num_tokens, TileRows(b"", place.start, 0, place.num_rows, place.geometry)) for place in places]
    parts = []
    for at in range(num_tokens):
        shown = [
            (0, 1, TileRows(b"", 0, at - place.start, 1, place.geometry))
            for place in places
            if place.start <= at < place.end
        ]
        parts.append(plane_positions(np.array([at + shift_at(places, at)]), shown))
    return plane_positions(np.arange(num_tokens), whole), np.concatenate(parts, 1)


def test_tokens_and_positions(checkpoint):
    own, pictures = Own(checkpoint.folder), [picture(30, 33), picture(61, 40)]
    for text, shown, seen in TEXTS:
        videos, text = [VIDEOS[number] for number in shown], spelled(text, checkpoint)
        expected = inputs(checkpoint, text, videos, [pictures[number] for number in seen], SIZE)
        given = [video.given for video in videos]
        ids, places = taken(own, text, given, [pictures[number] for number in seen])
        assert ids == expected["input_ids"][0].tolist()
        whole, parts = planes_of(len(ids), places)
        assert whole.tolist() == parts.tolist() == expected["position_ids"][:, 0].tolist(), text
        assert whole.max() < len(ids)
        # The words of a picture around a video are its tiles' own, where these have some.
        around, words = text.replace(WORD, f"<|vision_start|>{WORD}<|vision_end|>"), own.config.vision.video.words
        if words is not None and words.takes_place:
            assert taken(own, around, given, [pictures[number] for number in seen])[0] == ids


def test_frames(checkpoint):
    own = Own(checkpoint.folder)
    form, group = own.config.vision.video.form, checkpoint.processor.image_processor.temporal_patch_size
    for video in VIDEOS:
        frames, patches, _ = read(checkpoint, video, SIZE)
        frames = np.concatenate([frames, np.repeat(frames[-1:], -len(frames) % group, 0)])
        filmed = developed(wound(film_of(video.given), form), form)
        own_frames = [np.frombuffer(tile.pixels, np.uint8).reshape(-1, *frames.shape[1:]) for tile in filmed.tiles]
        assert np.array_equal(np.concatenate(own_frames), frames)
        [values, *_] = (pixel_values(tile, form.frame) for tile in filmed.tiles)
        assert values.shape == (group, 3, *frames.shape[1:3])
        assert np.array_equal(np.sort(values.ravel()), np.sort(patches[: len(patches) // len(filmed.tiles)].ravel()))


def test_the_rows_of_the_tower(checkpoint):
    own = Own(checkpoint.folder)
    model = build_model(own.config, torch.float32, 256)
    arena = HostArena("weights", weights_bytes(model))
    materialize(model, arena)
    load_weights(model, checkpoint.folder, NATIVE_CPU_OPS)
    pack_weights(model, NATIVE_CPU_OPS)
    text = spelled(f"{WORD}{WORD}", checkpoint)
    given = inputs(checkpoint, text, VIDEOS[:2], [], SIZE)
    with torch.inference_mode():
        known = {key: given[key] for key in ("pixel_values_videos", "video_grid_thw")}
        output = checkpoint.model.model.get_video_features(**known, return_dict=True)
        deep = [
            one if isinstance(one, torch.Tensor) else torch.cat(one)
            for one in getattr(output, "deepstack_features", [])
        ]
        expected = torch.stack([torch.cat(tuple(output.pooler_output)), *deep])
        _, places = taken(own, text, [video.given for video in VIDEOS[:2]])
        tiles = [place.tile for place in places]
        rows = torch.cat([model.vision(tile, torch.device("cpu"), NATIVE_CPU_OPS) for tile in tiles], 1)
    assert expected.std() > 0.1
    torch.testing.assert_close(rows, expected, atol=2e-5, rtol=1e-4)
    arena.close()


FORMS = {kind: read_form({}, kind) for kind in ("Qwen2VL", "Qwen3VL", "Glm4v", "Glm46V")}


@pytest.mark.parametrize("kind", ["Qwen2VL", "Qwen3VL"])
def test_which_frames_are_read(kind):
    from transformers.video_utils import VideoMetadata

    _, theirs = processor_of(kind)
    rng = random.Random(0)
    for _ in range(600):
        total, fps = rng.randint(4, 3000), rng.choice([1.0, 23.976, 24.0, 29.97, 30.0, rng.uniform(0.5, 90)])
        least, most = rng.choice([(4, 768), (2, 16), (6, 40)])
        asked = rng.choice([("fps", rng.choice([0.3, 1.0, 2.0, 7.0])), ("num_frames", rng.randint(2, min(total, 90)))])
        named = {"min_frames": least, "max_frames": most, "num_frames": None, "fps": None, "temporal_patch_size": 2}
        if asked[0] == "num_frames" and kind == "Qwen2VL" and round(asked[1] / 2) * 2 > total:
            continue  # an error there
        metadata = VideoMetadata(total_num_frames=total, fps=fps)
        expected = np.asarray(theirs.sample_frames(SimpleNamespace(**named), metadata, **dict([asked]))).tolist()
        numbers = {"fps": None, "num_frames": None, "min_frames": least, "max_frames": most} | dict([asked])
        assert sampled(total, fps, dataclasses.replace(FORMS[kind], **numbers), True) == expected, (total, fps, asked)


@pytest.mark.parametrize("kind", ["Glm4v", "Glm46V"])
def test_which_frames_are_read_by_glm(kind):
    from transformers.video_utils import VideoMetadata

    _, theirs = processor_of(kind)
    rng, lengths = random.Random(0), {"Glm4v": (40, 4000, 20000), "Glm46V": (60, 3000, 20000, 90000)}[kind]
    for number in range(400):
        total, fps = rng.randint(1, rng.choice(lengths)), rng.choice([1.0, 23.976, 24.0, 30.0, rng.uniform(0.5, 90)])
        asked, most = rng.choice([0.3, 1.0, 2.0, 7.5]), rng.choice([3, 300])
        is_file = bool(number % 2)
        metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps if is_file else None)
        named = SimpleNamespace(fps=2, max_duration=most, temporal_patch_size=2)
        expected = theirs.sample_frames(named, metadata, fps=asked).tolist()
        form = dataclasses.replace(FORMS[kind], fps=asked, max_duration=most)
        # Of a file of a sixth of a second GLM-4.6V's reads nothing, and here one frame.
        assert sampled(total, fps, form, is_file) == (expected or [0, 0]), (total, fps, asked, most, is_file)


def test_which_frames_are_read_of_few():
    for kind, form in FORMS.items():
        for asked in ({}, {"num_frames": 1}, {"num_frames": 9}, {"fps": 1000.0}):
            for total in range(1, 6):
                numbers = sampled(total, 24.0, dataclasses.replace(form, **asked), True)
                is_twice = kind.startswith("Glm") and numbers[-2:-1] == numbers[-1:]
                once = numbers[:-1] if is_twice else numbers
                assert once and once == sorted(set(once)) and once[-1] < total, (kind, asked, total)
    assert len(sampled(48, None, FORMS["Qwen3VL"], True)) == 4
    for kind in FORMS.keys() - {"Qwen3VL"}:
        with pytest.raises(InvalidRequestError, match="the fps of the video is not known; give it beside the frames"):
            sampled(48, None, FORMS[kind], True)


@pytest.mark.parametrize("kind", FORMS)
def test_sizes_of_frames(kind):
    module, _ = processor_of(kind)
    rng, form = random.Random(0), FORMS[kind]
    for number in range(2000):
        width, height, frames = rng.randint(20, 2500), rng.randint(20, 2500), rng.randint(2, 800)
        least = rng.choice([4 * 784, 128 * 784])
        most = rng.choice([768 * 784, least, 24 << 20])
        changed = dataclasses.replace(form.frame, min_pixels=least, max_pixels=most)
        has_caps = not kind.startswith("Glm") and number % 3 == 0
        changed = dataclasses.replace(form, frame=changed, has_caps=has_caps)
        edge = form.frame.edge
        if changed.has_caps and kind == "Qwen3VL":
            most = max(min(form.max_tokens * edge**2, most // frames), int(least * 1.05)) * frames
        elif changed.has_caps:
            most = max(min(most, int(form.max_tokens * edge**2 * 0.9) * 2 // frames), int(least * 1.05))
        numbers = {"num_frames": frames, "temporal_factor": 2} if kind != "Qwen2VL" else {}
        given = {"height": height, "width": width, "factor": edge, "min_pixels": least, "max_pixels": most}
        assert frame_size(width, height, frames, changed) == module.smart_resize(**given, **numbers)[::-1]


def test_sampling_of_given_frames_by_glm(tmp_path):
    """GLM-4.6V's knows no `fps`, and GLM-4.1V's reads the last frame twice if their number is odd."""
    for name, asked, number in (("glm4v", {"fps": 2.0}, 4), ("glm4v", {"fps": 1.3}, 3), ("glm4.6v", {}, 12)):
        checkpoint = CASES[name](tmp_path)
        video, text = Video(film(30, 23, 29), {"fps": 10.0, "total_num_frames": 30}, asked), spelled(WORD, checkpoint)
        expected = inputs(checkpoint, text, [video], [], SIZE)["input_ids"][0].tolist()
        ids, places = taken(Own(tmp_path), text, [video.given], settings={"do_sample_frames": True, **asked})
        assert ids == expected and len(places) == number, (name, len(places))
    with pytest.raises(InvalidRequestError, match="nothing is known about fps"):
        taken(Own(tmp_path), text, [video.given], settings={"fps": 2})
    CASES["glm4v"](tmp_path)
    with pytest.raises(InvalidRequestError, match="max_duration 301 of a request is above the engine's 300"):
        taken(Own(tmp_path), text, [video.given], settings={"max_duration": 301})


def test_sampling_of_given_frames(tmp_path):
    """Only if it is asked for, by the engine or by the request; then as transformers' processors do."""
    checkpoint = CASES["qwen3"](tmp_path)
    video = Video(film(30, 24, 24), {"fps": 10.0, "total_num_frames": 30}, {"fps": 2.0})
    expected = inputs(checkpoint, WORD, [video], [], SIZE)["input_ids"][0].tolist()
    plain = Own(tmp_path)
    asked = [(Own(tmp_path, {"fps": 2}), None), (plain, {"fps": 2.0}), (plain, {"do_sample_frames": True})]
    for own, settings in asked:
        assert taken(own, WORD, [video.given], settings=settings)[0] == expected
    assert len(taken(Own(tmp_path, {"fps": 2}), WORD, [video.given], settings={"do_sample_frames": False})[1]) == 15
    assert len(taken(Own(tmp_path), WORD, [video.given])[1]) == 15
    assert len(taken(Own(tmp_path), WORD, [video.given], settings={"num_frames": 8})[1]) == 4
    # Of frames that somebody has chosen, numbers and seconds are those in the whole video.
    chosen = (video.frames, {"fps": 20.0, "total_num_frames": 60, "frames_indices": list(range(0, 60, 2))})
    assert taken(Own(tmp_path), WORD, [chosen], settings={"fps": 2.0})[0] == expected


REFUSED = [
    ({"fps": 2, "num_frames": 3}, "fps and num_frames both say"),
    ({"fps": 0}, "fps 0 .* not above 0"),
    ({"num_frames": 0}, "num_frames 0"),
    ({"do_sample_frames": 3}, "do_sample_frames must be true or false"),
    ({"videos_kwargs": {"max_pixel": 3}}, "nothing is known about max_pixel; .* pictures and videos .* fps"),
    ({"videos_kwargs": 3}, "videos_kwargs must be a dict"),
    ({"size": {"height": 3}}, "size has"),
    ({"min_frames": 9, "max_frames": 8}, "min_frames 9 .* above max_frames 8"),
]


def test_settings(tmp_path):
    CASES["qwen2.5"](tmp_path)
    for settings, reason in REFUSED:
        with pytest.raises(ConfigError, match=f"mm_processor_kwargs: .*{reason}"):
            Own(tmp_path, settings)
    video, plain = film(4, 60, 60), Own(tmp_path)
    both, one = {"max_pixels": 64 * 9}, {"videos_kwargs": {"max_pixels": 64 * 9}}
    few = taken(plain, f"{WORD}<image>", [video], [picture(60, 60)], both)[1]
    assert [place.num_rows for place in few] == [9, 9, 9]
    assert [place.num_rows for place in taken(plain, f"{WORD}<image>", [video], [picture(60, 60)], one)[1]] == [
        9,
        9,
        36,
    ]
    for settings in ({"videos_kwargs": {"max_pixels": 64 * 41}}, {"max_frames": 1000}):
        with pytest.raises(InvalidRequestError, match="of a request is above the engine's"):
            taken(plain, WORD, [video], settings=settings)
    with pytest.raises(InvalidRequestError, match="a request cannot change image_mean"):
        taken(plain, WORD, [video], settings={"videos_kwargs": {"image_mean": [0, 0, 0]}})


def test_frames_that_are_far_apart(tmp_path):
    """Positions by the second may go beyond places in the prompt, and beyond any that the model has."""
    CASES["qwen2.5"](tmp_path)
    video = (film(6, 24, 24), {"fps": 0.1})
    with pytest.raises(InvalidRequestError, match="too far apart in time"):
        taken(Own(tmp_path), WORD, [video])
    assert taken(Own(tmp_path), "a b c " * 60 + WORD, [(film(6, 24, 24), {"fps": 1.0})])
