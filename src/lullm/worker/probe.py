"""Spans of no request, for warm-ups and measurements. Their results are dropped."""

from collections.abc import Sequence

import msgspec

from lullm.config.hearing.hearing import HearingConfig
from lullm.config.layer.encoder import EncoderConfig
from lullm.types.packed import pack, unpack
from lullm.types.step import Span
from lullm.types.vision.tile import EDGE_FRAMES, Tile
from lullm.worker.setup import WorkerSetup


def behind_encoder(setup: WorkerSetup, spans: Sequence[Span]) -> list[Span]:
    """The spans behind one row of an encoder, if the model has one: no token goes without. All rows are in block 0."""
    if setup.model_config.encoder is None:
        return list(spans)
    block_size = setup.config.block_size
    return [
        msgspec.structs.replace(
            span,
            start=span.start + block_size,
            block_ids=tuple(pack([0, *unpack(ids)]) for ids in span.block_ids),
            num_encoder_rows=1,
        )
        for span in spans
    ]


def largest_input(encoder: EncoderConfig) -> Tile:
    """Silence, or a text of one token again and again, as long as any."""
    height, width = (encoder.num_mels, encoder.num_frames) if encoder.reads == "audio" else (1, encoder.max_rows)
    return Tile.of(height, width, bytes(4 * height * width))


def longest_window(hearing: HearingConfig) -> Tile:
    """Silence, for a decoder that hears."""
    height, width = hearing.encoder.num_mels, hearing.encoder.num_frames + EDGE_FRAMES
    return Tile.of(height, width, bytes(4 * height * width))
