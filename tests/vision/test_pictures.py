"""From bytes, arrays and URLs to RGB pictures, and what is refused on the way."""

import base64
import contextlib
import io
import sys

import numpy as np
import pytest
from kit.vision.checkpoint import picture
from PIL import Image

from lullm.errors import InvalidRequestError, UnsupportedError
from lullm.vision import picture as pictures
from lullm.vision.picture import as_picture, decoded
from lullm.vision.source import PICTURE, MediaSource


def file_of(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_the_formats():
    image = picture(20, 12)
    for kind, options in (("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})):
        assert decoded(file_of(image, kind, **options)).tobytes() == image.tobytes()
    assert decoded(file_of(image, "JPEG")).size == decoded(file_of(image, "GIF")).size == (20, 12)
    for kind in ("TIFF", "PPM", "ICO"):
        with pytest.raises(InvalidRequestError, match="is not PNG, JPEG, WEBP, GIF or BMP"):
            decoded(file_of(image, kind))


def test_a_photograph_is_turned_as_it_says():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decoded(file_of(picture(20, 12), "PNG", exif=exif)).size == (12, 20)


def test_arrays_and_modes():
    image = picture(20, 12)
    array = np.asarray(image)
    for given in (image, array, array.transpose(2, 0, 1), np.asarray(image.convert("RGBA")), image.convert("RGBA")):
        assert as_picture(given).tobytes() == image.tobytes()
    grey = array[:, :, 0]
    for given in (grey, grey[:, :, None], grey[None], Image.fromarray(grey)):
        assert as_picture(given).tobytes() == np.repeat(grey[:, :, None], 3, 2).tobytes()
    torch = pytest.importorskip("torch")
    assert as_picture(torch.tensor(array)).tobytes() == image.tobytes()


@pytest.mark.parametrize(
    "given",
    [7, b"bytes", np.zeros((4, 4, 3)), np.zeros((4, 4, 4, 3), np.uint8), np.zeros((2, 4, 5), np.uint8),
     np.zeros((0, 4, 3), np.uint8), None],
    ids=str,
)  # fmt: skip
def test_what_is_no_picture(given):
    with pytest.raises(InvalidRequestError):
        as_picture(given)


def test_large_pictures(monkeypatch):
    monkeypatch.setattr(pictures, "MAX_PIXELS", 20 * 12 - 1)
    for give in (lambda: decoded(file_of(picture(20, 12))), lambda: as_picture(picture(20, 12))):
        with pytest.raises(InvalidRequestError, match="pixels"):
            give()
    monkeypatch.setattr(pictures, "MAX_PIXELS", 20 * 12)
    decoded(file_of(picture(20, 12)))


def test_damaged_files_are_refused():
    """Whatever byte is wrong: a picture, or a refusal."""
    rng = np.random.default_rng(0)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        data = file_of(picture(30, 20), kind)
        for _ in range(60):
            damaged = bytearray(data[: rng.integers(1, len(data))] if rng.random() < 0.3 else data)
            for place in rng.integers(0, len(damaged), 3):
                damaged[place] = rng.integers(256)
            with contextlib.suppress(InvalidRequestError):
                assert decoded(bytes(damaged)).mode == "RGB"


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError, match=r"lullm\[vision\]"):
        decoded(b"")


def picture_bytes(url, folder=None):
    return MediaSource(folder).read(url, PICTURE)


def test_data_urls():
    text = base64.b64encode(b"some bytes!").decode()
    for url in (f"data:image/png;base64,{text}", f"data:;base64,{text}", f"DATA:image/jpeg;x=y;BASE64,{text}",
                "data:image/png,some%20bytes!"):  # fmt: skip
        assert picture_bytes(url) == b"some bytes!"
    for url, words in (
        ("data:image/png;base64", "data:image/png"),
        ("data:image/png;base64,a", "base64"),
        ("data:text/html;base64,aGk=", "no picture"),
        ("https://example.com/a.png", "not fetched"),
        ("ftp://example.com/a.png", "data:image/png"),
        ("a.png", "data:image/png"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            picture_bytes(url)


def test_files(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir(), outside.mkdir()
    (inside / "a b.png").write_bytes(b"in")
    (outside / "c.png").write_bytes(b"out")
    (inside / "link.png").symlink_to(outside / "c.png")
    assert picture_bytes((inside / "a b.png").as_uri(), inside) == b"in"
    for url, words in (
        ((outside / "c.png").as_uri(), "not below"),
        ((inside / "link.png").as_uri(), "not below"),
        (f"{inside.as_uri()}/../out/c.png", "not below"),
        ((inside / "none.png").as_uri(), "No such file"),
        (inside.as_uri(), "regular file|directory"),
        ("file://host/a.png", "three slashes"),
        (f"{inside.as_uri()}/%00", "cannot be read"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            picture_bytes(url, inside)
    with pytest.raises(InvalidRequestError, match="allowed_local_media_path"):
        picture_bytes((inside / "a b.png").as_uri())
