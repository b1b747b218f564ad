"""Finds whether a checkpoint's head is its embedding: config.json may say so although the files hold another head.

Families tie the two by default. Some files have no such key, or the value of the model that they were trained from. So
transformers 5 compares the contents, and ties equal ones. Loads no torch.
"""

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lullm.config.gguf.file import is_gguf
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.units import MIB
from lullm.weights.reading.files import weight_files

logger = get_logger(__name__)

_HEAD = re.compile(
    r"^(((model\.)?language_model\.)?(lm_head|embed_out|output_projection|decoder)|output|transformer\.output_layer)\.weight$"
)
_EMBEDDING = re.compile(
    r"^(?!(model\.)?(vis|aud|embed_vis|embed_aud))([a-z_]+\.)*(embed_tokens|tokens_embed|tok_embeddings|embed_in|wte|word_embeddings|embeddings?)\.weight$"
)
_LARGEST_HEADER = 100_000_000
"""In bytes; safetensors itself accepts no larger one."""
_PIECE_BYTES = MIB


def with_own_head(config: ModelConfig, folder: Path) -> ModelConfig:
    """The config, with its own head if the files hold one that differs from the embedding.

    Compares the contents of the two, if both are stored: a gigabyte takes about 0.2 s from the page cache.
    """
    if not config.ties_head or not config.has_lm_head:
        return config
    name = differing_head(folder)
    if name is None:
        return config
    logger.warning(
        "%s: by tie_word_embeddings the head is the embedding, and the files hold %s with other contents, which is "
        "used; set it to false to have no warning",
        folder / "config.json",
        name,
    )
    return replace(config, tie_word_embeddings=False)


def differing_head(folder: Path) -> str | None:
    """The name of a stored head whose bytes differ from the embedding's; None: no such head.

    The loader reports missing and damaged files.
    """
    if is_gguf(folder):
        return None
    try:
        places = _places(folder)
        heads = [place for place in places if _HEAD.match(place.name)]
        embeddings = [place for place in places if _EMBEDDING.match(place.name)]
        if len(heads) != 1 or len(embeddings) != 1:
            return None
        return None if _are_equal(heads[0], embeddings[0]) else heads[0].name
    except (ModelLoadError, OSError, ValueError, LookupError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor is stored."""

    name: str
    path: Path
    first_byte: int
    num_bytes: int
    form: tuple[Any, ...]


def _places(folder: Path) -> list[_Place]:
    """The places of tensors that may be the head or the embedding."""
    found = []
    for path, names in weight_files(folder).items():
        if names is not None and not any(_HEAD.match(name) or _EMBEDDING.match(name) for name in names):
            continue
        header, start = _header(path)
        for name in header if names is None else names:
            if _HEAD.match(name) or _EMBEDDING.match(name):
                first, last = header[name]["data_offsets"]
                form = (header[name]["dtype"], *header[name]["shape"])
                found.append(_Place(name, path, start + first, last - first, form))
    return found


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """(the header of a safetensors file, where its data starts). Raises ValueError: it is damaged."""
    with path.open("rb") as file:
        num_bytes = int.from_bytes(file.read(8), "little")
        if num_bytes > _LARGEST_HEADER:
            raise ValueError("no header is so long")
        return json.loads(file.read(num_bytes)), 8 + num_bytes


def _are_equal(one: _Place, other: _Place) -> bool:
    if one.form != other.form or one.num_bytes != other.num_bytes:
        return False
    with one.path.open("rb") as first, other.path.open("rb") as second:
        for done in range(0, one.num_bytes, _PIECE_BYTES):
            size = min(_PIECE_BYTES, one.num_bytes - done)
            piece = os.pread(first.fileno(), size, one.first_byte + done)
            if piece != os.pread(second.fileno(), size, other.first_byte + done):
                return False
    return True
