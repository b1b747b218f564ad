"""What pictures take is known from their sizes, and too much is refused before a pixel is decoded."""

import base64
import io
import random
from collections import Counter
from dataclasses import replace

import pytest
from kit.vision.checkpoint import write_llava, write_pixtral, write_qwen_vl
from PIL import Image

from lullm.config.engine import EngineConfig
from lullm.config.vision.form import PictureForm
from lullm.engine.start.model import open_model
from lullm.engine.vision import pictures
from lullm.engine.vision.pictures import PictureInput
from lullm.errors import InvalidRequestError
from lullm.types.request import Conversation
from lullm.vision import bounds
from lullm.vision.bounds import check_pictures, tile_shapes
from lullm.vision.picture import MAX_PIXELS
from lullm.vision.tiling import tiled

FORM = PictureForm(12, "stretch", 24, False, False, 2, 1 / 255, (0.5,) * 3, (0.5,) * 3)
FORMS = {
    "stretch": FORM,
    "crop": replace(FORM, fit="crop"),
    "padded crop": replace(FORM, fit="crop", pads=True),
    "padded": replace(FORM, pads=True),
    "split": replace(FORM, fit="split", splits=True, resize_edge=70),
    "not split": replace(FORM, fit="split"),
    "grid": replace(FORM, fit="grid", max_tiles=7),
    "area": replace(FORM, fit="area", min_pixels=500, max_pixels=5000),
    "volume": replace(FORM, fit="volume", min_pixels=1000, max_pixels=10000, num_frames=2),
    "anyres": replace(FORM, fit="anyres", grids=((1, 2), (2, 1), (2, 2), (1, 4))),
    "within": replace(FORM, fit="within", resize_edge=70),
    "budget": replace(FORM, fit="budget", max_pixels=12 * 12 * 20),
}


@pytest.mark.parametrize("name", FORMS)
def test_shapes_are_those_of_the_tiles(name):
    rng, form = random.Random(1), FORMS[name]
    for _ in range(60):
        width, height = rng.choice([(1, 1), (rng.randrange(1, 90), rng.randrange(1, 90)), (rng.randrange(40, 150), 1)])
        tiles = tiled(Image.new("RGB", (width, height)), form).tiles
        assert dict(tile_shapes(width, height, form)) == Counter(tile.shape for tile in tiles)


@pytest.mark.parametrize("name", ["crop", "padded crop", "padded"])
def test_a_thread_of_pixels(name):
    """A file of some hundred bytes; its square, or the one with a longer short edge, would take gigabytes."""
    for size in ((1, 60_000_000), (60_000_000, 1)):
        with pytest.raises(InvalidRequestError, match="too long for its width"):
            check_pictures([size], FORMS[name], lambda *_: 1, 10**6)


def test_the_pixels_of_a_request():
    sizes = [(8192, 8192)] * 8
    assert sum(width * height for width, height in sizes) == bounds.MAX_TOTAL_PIXELS
    check_pictures(sizes, FORM, lambda *_: 1, 8)
    with pytest.raises(InvalidRequestError, match="pixels together"):
        check_pictures([*sizes, (1, 1)], FORM, lambda *_: 1, 9)
    with pytest.raises(InvalidRequestError, match="8 tokens") as caught:
        check_pictures(sizes, FORM, lambda *_: 1, 7)
    assert caught.value.code == "context_length_exceeded"


def address(width, height):
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("write", "size", "words"),
    [
        (write_qwen_vl, (8000, 8000), "its pictures alone take"),
        (write_llava, (1, 100_000), "too long for its width"),
        (
            lambda folder: write_pixtral(folder, settings={"size": {"longest_edge": 800}}),
            (900, 900),
            "alone take 40200",
        ),
    ],
)
def test_nothing_is_decoded_before(tmp_path, monkeypatch, write, size, words):
    folder = write(tmp_path).folder
    largest = {"mm_processor_kwargs": {"max_pixels": MAX_PIXELS}} if write is write_qwen_vl else {}
    opened = open_model(EngineConfig.from_options({"model": str(folder), "max_model_len": 512} | largest))
    own = PictureInput(opened.config, opened.model_config, opened.tokenizer)
    monkeypatch.setattr(pictures, "decoded", None)
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": address(*size)}]}]
    with pytest.raises(InvalidRequestError, match=words):
        own.take(Conversation(messages), may_block=True)
