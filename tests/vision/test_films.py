"""Files of videos, and frames that are sent in other ways."""

import base64
import io
import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from kit.vision.video import film
from PIL import Image

from lullm.errors import InvalidRequestError, UnsupportedError
from lullm.vision import container
from lullm.vision.film import fetched
from lullm.vision.film import film_of as film_of_given
from lullm.vision.source import MediaSource

FRAMES = film(6, 32, 24)


def images(frames=FRAMES):
    return [Image.fromarray(frame) for frame in frames]


def film_of(given, folder):
    return film_of_given(fetched(given, MediaSource(folder)))


def moving(kind, frames=FRAMES, **options):
    first, *others = images(frames)
    file = io.BytesIO()
    first.save(file, kind, save_all=True, append_images=others, **options)
    return file.getvalue()


def url(data, kind="video/mp4"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def read(found, numbers=None):
    return np.stack(
        [np.asarray(image) for image in found.read(range(found.num_frames) if numbers is None else numbers)]
    )


@pytest.mark.parametrize("kind", ["WEBP", "PNG"])
def test_moving_pictures(kind):
    options = {"duration": 125, **({"lossless": True, "minimize_size": False} if kind == "WEBP" else {})}
    found = film_of(url(moving(kind, **options), f"image/{kind.lower()}"), None)
    assert (found.num_frames, found.width, found.height, found.total, found.is_file) == (6, 32, 24, 6, True)
    assert found.fps == pytest.approx(8.0) and np.array_equal(read(found), FRAMES)
    assert np.array_equal(read(found, [1, 4]), FRAMES[[1, 4]])


def test_gifs():
    found = film_of(url(moving("GIF", duration=[100, 200, 300, 100, 100, 200]), "image/gif"), None)
    assert (found.num_frames, found.fps) == (6, 6.0)
    assert np.abs(read(found).astype(int) - FRAMES).mean() < 20  # of 256 colors
    still = film_of(url(moving("PNG", FRAMES[:1]), ""), None)
    assert (still.num_frames, still.fps) == (1, None) and np.array_equal(read(still), FRAMES[:1])


def jpeg(frame):
    file = io.BytesIO()
    frame.save(file, "JPEG", quality=95)
    return base64.b64encode(file.getvalue()).decode()


def test_frames_one_by_one():
    """vLLM's way, and a list of URLs."""
    sent = [jpeg(frame) for frame in images()]
    whole = read(film_of("data:video/jpeg;base64," + ",".join(sent), None))
    assert whole.shape == FRAMES.shape and np.abs(whole.astype(int) - FRAMES).mean() < 20
    found = film_of([f"data:image/jpeg;base64,{one}" for one in sent], None)
    assert np.array_equal(read(found), whole) and not found.is_file and found.fps is None
    tensors = film_of(FRAMES.transpose(0, 3, 1, 2), None)
    assert (tensors.width, tensors.height) == (32, 24) and np.array_equal(read(tensors), FRAMES)
    with pytest.raises(InvalidRequestError, match="differ in size"):
        film_of([f"data:image/jpeg;base64,{jpeg(frame)}" for frame in (images()[0], images()[1].resize((9, 9)))], None)
    with pytest.raises(InvalidRequestError, match="base64 is not valid"):
        film_of("data:video/jpeg;base64,%%%", None)


def test_where_videos_are(tmp_path):
    data = moving("GIF", duration=100)
    (tmp_path / "a.gif").write_bytes(data)
    (tmp_path.parent / "outside.gif").write_bytes(data)
    assert film_of((tmp_path / "a.gif").as_uri(), tmp_path).num_frames == 6
    refused = [
        ((tmp_path / "a.gif").as_uri(), None, "file:// videos need allowed_local_media_path"),
        ((tmp_path.parent / "outside.gif").as_uri(), tmp_path, "not below allowed_local_media_path"),
        ("http://127.0.0.1/a.mp4", tmp_path, "videos are not fetched from the network unless .* data:video/mp4;base64"),
        ("data:audio/wav;base64,AAAA", None, "is no video"),
        ("a.mp4", tmp_path, "a video's URL is data:video/mp4"),
        (url(b"#EXTM3U\nfile:///etc/passwd\n"), None, "no MP4, MOV, Matroska"),
        (url(data[: len(data) // 2]), None, "cannot be decoded"),
        (url(data[:200]), None, "is not PNG"),
    ]
    for address, folder, reason in refused:
        with pytest.raises(InvalidRequestError, match=reason):
            read(film_of(address, folder))


def test_too_many_pixels(monkeypatch):
    monkeypatch.setattr(container, "MOST_DECODED", 1000)
    with pytest.raises(InvalidRequestError, match="more than 1000 pixels together"):
        film_of(url(moving("GIF")), None)


MP4 = b"\x00\x00\x00\x18ftypisom" + bytes(16)


def test_other_files_need_pyav(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'lullm\[video\]'"):
        film_of(url(MP4), None)


class File:
    """As PyAV's, of the frames above."""

    opened: list = []
    num_stated, rotation = 6, 0

    def __init__(self, file, format, options, metadata_errors):
        self.opened.append((file.read(4), format, options))
        context = SimpleNamespace(width=32, height=24)
        stream = SimpleNamespace(codec_context=context, average_rate=None, guessed_rate=25, frames=self.num_stated)
        self.streams = SimpleNamespace(video=[stream])

    def decode(self, stream):
        for frame in FRAMES:
            yield SimpleNamespace(rotation=self.rotation, to_ndarray=lambda format, frame=frame: frame)

    def demux(self, stream):
        return [SimpleNamespace(size=9)] * 6 + [SimpleNamespace(size=0)]

    def close(self):
        pass


@pytest.mark.parametrize("head", [MP4, b"\x1a\x45\xdf\xa3" + bytes(30), b"RIFF" + bytes(4) + b"AVI " + bytes(30)])
def test_what_pyav_reads(monkeypatch, head):
    monkeypatch.setitem(sys.modules, "av", SimpleNamespace(open=File))
    for stated in (6, 0):
        monkeypatch.setattr(File, "num_stated", stated)
        found = film_of(url(head), None)
        assert (found.num_frames, found.fps, found.width, found.height) == (6, 25.0, 32, 24)
        assert np.array_equal(read(found, [0, 3]), FRAMES[[0, 3]])
    # The kind is never guessed, and nothing that a file names can be opened.
    assert all(kind in ("mp4", "matroska", "avi") for _, kind, _ in File.opened)
    assert all(options == {"protocol_whitelist": "none"} for *_, options in File.opened)
    monkeypatch.setattr(File, "num_stated", 9)  # more than there are
    assert np.array_equal(read(film_of(url(head), None), [0, 5, 7]), FRAMES[[0, 5]])
    for degrees, turns in ((90, 1), (180, 2), (-90, 3)):
        monkeypatch.setattr(File, "rotation", degrees)
        turned = film_of(url(head), None)
        assert (turned.width, turned.height) == ((32, 24), (24, 32))[turns % 2]
        assert np.array_equal(read(turned, [2])[0], np.rot90(FRAMES[2], turns))


def test_broken_files(monkeypatch):
    def broken(*arguments, **options):
        raise ValueError("moov atom not found")

    monkeypatch.setitem(sys.modules, "av", SimpleNamespace(open=broken))
    with pytest.raises(InvalidRequestError, match="a video cannot be decoded: moov atom not found"):
        film_of(url(MP4), None)
    monkeypatch.setitem(sys.modules, "av", SimpleNamespace(open=File))
    monkeypatch.setattr(File, "decode", lambda *arguments: iter(()))
    with pytest.raises(InvalidRequestError, match="has no frames"):
        film_of(url(MP4), None)


@pytest.mark.parametrize(("kind", "codec"), [("mp4", "mpeg4"), ("matroska", "mpeg4"), ("avi", "mjpeg")])
def test_with_pyav(kind, codec):
    av = pytest.importorskip("av")
    file, large = io.BytesIO(), film(6, 64, 48)
    with av.open(file, "w", format=kind) as out:
        stream = out.add_stream(codec, rate=12)
        stream.width, stream.height, stream.bit_rate = 64, 48, 4_000_000
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        frames = [stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")) for frame in large]
        out.mux(list(itertools.chain(*frames, stream.encode())))
    data = file.getvalue()
    found = film_of(url(data), None)
    assert (found.num_frames, found.width, found.height, round(found.fps)) == (6, 64, 48, 12)
    assert np.abs(read(found, [1, 5]).astype(int) - large[[1, 5]]).mean() < 25
    for broken in (data[:60], data[: len(data) // 2][:200]):
        with pytest.raises(InvalidRequestError):
            read(film_of(url(broken), None))
