"""Pictures of Phi-4-multimodal beside transformers' image processor and tower."""

import numpy as np
import pytest
import torch
from kit.phi4 import EDGE, IMAGE_ID, spelled, write_phi4
from kit.vision.checkpoint import picture, sizes
from kit.vision.own import Own
from PIL import Image
from torch.nn import functional

from lullm.arena.host import HostArena
from lullm.errors import InvalidRequestError
from lullm.models.registry import build_model
from lullm.ops.selection import NATIVE_CPU_OPS, TORCH_CPU_OPS
from lullm.vision.pixels import pixel_values
from lullm.vision.tiling import corner_grid
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes
from lullm.weights.packing import pack_weights

SIZES = [(24, 24), (30, 30), (61, 40), (20, 80), (100, 77), (149, 60), (24, 90), (26, 24), (13, 13), (150, 150)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_phi4(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def own(made):
    return Own(made.folder)


def shapes():
    return SIZES + [size for size in sizes(3, 30) if min(size) > 9 and max(size) < 2 * min(size)]


def test_tokens_and_pixels(made, own):
    form, text = own.config.vision.picture, "hello <image>the quick"
    for number, size in enumerate(shapes()):
        given = [picture(*size, seed=number)]
        with torch.inference_mode():
            expected, _ = made.rows(text, given, [])
        ids, [place] = own.read(spelled(text), given)
        assert ids == expected[0].tolist()
        theirs, tile = made.seen(given), place.tile
        squares = theirs["image_pixel_values"][0, 1:].numpy()
        lines, columns = tile.height // EDGE, tile.width // EDGE
        assert theirs["image_sizes"].tolist() == [[tile.height, tile.width]]
        cut = pixel_values(tile, form)[0].reshape(3, lines, EDGE, columns, EDGE).transpose(1, 3, 0, 2, 4)
        assert np.array_equal(cut.reshape(squares.shape), squares), size


@pytest.mark.parametrize("ops", [TORCH_CPU_OPS, NATIVE_CPU_OPS], ids=["torch", "native"])
def test_rows(made, own, ops):
    model = build_model(own.config, torch.float32, 256)
    arena = HostArena("weights", weights_bytes(model))
    materialize(model, arena)
    load_weights(model, made.folder, ops)
    pack_weights(model, ops)
    for number, size in enumerate(SIZES):
        given = [picture(*size, seed=number)]
        with torch.inference_mode():
            ids, rows = made.rows("<image>", given, [])
            _, [place] = own.read(spelled("<image>"), given)
            [shown] = model.vision(place.tile, torch.device("cpu"), ops)
        torch.testing.assert_close(shown, rows[ids == IMAGE_ID], atol=2e-5, rtol=1e-4)
    arena.close()


def test_a_filter_beside_torchvisions():
    """It resizes bytes by this function of torch; ours are Pillow's."""
    image = np.asarray(picture(149, 60))
    own = np.asarray(Image.fromarray(image).resize((96, 38), 2)).astype(int)
    theirs = functional.interpolate(
        torch.from_numpy(image.copy()).permute(2, 0, 1)[None], (38, 96), mode="bilinear", antialias=True
    )[0].permute(1, 2, 0)
    assert np.abs(own - theirs.numpy().astype(int)).max() <= 1


def test_too_thin(own):
    with pytest.raises(InvalidRequestError, match="3 x 90 pixels is so thin that 3 pixels .* sees 10 at least; cut it"):
        corner_grid(3, 90, own.config.vision.picture)
