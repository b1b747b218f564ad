"""lullm's half of a comparison of pictures with transformers."""

import numpy as np

from lullm.config.engine import EngineConfig
from lullm.engine.start.model import open_model
from lullm.engine.vision.pictures import PictureInput
from lullm.vision.pixels import pixel_values


def as_read(pixels, processor):
    """`[3, H, W]` as the processor gives them: tiles, or for Qwen's patches in groups, each picture repeated."""
    if hasattr(processor, "pooling_kernel_size"):  # patches with all channels of a pixel, then of the next one
        size = processor.patch_size
        cut = pixels.reshape(3, pixels.shape[1] // size, size, pixels.shape[2] // size, size)
        return cut.transpose(1, 3, 2, 4, 0).reshape(-1, 3 * size**2)
    if not hasattr(processor, "merge_size"):
        return pixels[None]
    if type(processor).__name__.startswith("PaddleOCR"):  # patches line by line
        size = processor.patch_size
        cut = pixels.reshape(3, pixels.shape[1] // size, size, pixels.shape[2] // size, size)
        return cut.transpose(1, 3, 0, 2, 4).reshape(-1, 3, size, size)
    size, group, frames = processor.patch_size, processor.merge_size, processor.temporal_patch_size
    lines, columns = pixels.shape[1] // size // group, pixels.shape[2] // size // group
    cut = pixels.reshape(3, lines, group, size, columns, group, size).transpose(1, 4, 2, 5, 0, 3, 6)
    return np.repeat(cut[:, :, :, :, :, None], frames, 5).reshape(lines * columns * group**2, -1)


class Own:
    """lullm's half: without an engine."""

    def __init__(self, folder, settings=None):
        opened = open_model(EngineConfig.from_options({"model": str(folder), "mm_processor_kwargs": settings}))
        self.config, self.tokenizer = opened.model_config, opened.tokenizer
        self.pictures = PictureInput(opened.config, self.config, self.tokenizer)

    def read(self, text, pictures, settings=None):
        """(the ids, the places of tiles)."""
        prompt = {"prompt": text, "multi_modal_data": {"image": pictures}, "mm_processor_kwargs": settings}
        prompt, tiled = self.pictures.take(prompt, may_block=True)
        return self.pictures.place(self.tokenizer.encode(prompt["prompt"]), tiled)

    def numbers(self, places, processor):
        """The pixels of tiles, as `processor` gives them."""
        form = self.config.vision.picture
        read = [as_read(pixel_values(place.tile, form)[0], processor) for place in places]
        is_tall = form.fit == "anyres"
        return [one[0].reshape(3, -1, form.edge, form.edge).swapaxes(0, 1) if is_tall else one for one in read]
