"""Reads how a GGUF model sees pictures, from the mmproj file beside it, or why it does not."""

from collections.abc import Iterable
from dataclasses import replace

from lullm.config.gguf.file import GGUFFile, read_gguf
from lullm.config.gguf.keys import Keys
from lullm.config.gguf.mmproj.finding import AUTO, find_mmproj
from lullm.config.gguf.mmproj.kind import kind_of
from lullm.config.vision.reading import TextFacts, vision_of
from lullm.config.vision.vision import VisionConfig
from lullm.errors import ModelLoadError
from lullm.log import get_logger

logger = get_logger(__name__)


def read_mmproj(file: GGUFFile, text: TextFacts, wish: str) -> tuple[VisionConfig | None, str]:
    """(how the model of a file sees pictures; or None, why it does not).

    Args:
        wish: the option `mmproj`, see `find_mmproj`.

    Raises ModelLoadError: the user named a file, and the model cannot see with it.
    """
    try:
        found = find_mmproj(file.path, wish)
        if found.path is None:
            return None, found.reason
        vision = _read(file, read_gguf(found.path), text)
    except ModelLoadError as error:
        if wish != AUTO:
            raise
        logger.info("%s: only the text model is loaded: %s", file.path.name, error)
        return None, str(error)
    no_video = "its files say nothing about videos; take the model's folder"
    return replace(vision, weights_file=found.path, no_video=no_video), ""


def _read(file: GGUFFile, tower: GGUFFile, text: TextFacts) -> VisionConfig:
    keys = Keys(tower)
    _, kind = kind_of(keys)
    read = kind.read(keys, Keys(file))
    name, side = kind.last
    last = tower.tensors.get(name)
    size = None if last is None or side >= len(last.shape) else last.shape[side]
    if size != text.hidden_size:
        raise keys.fault(
            f"its rows have {size} elements, those of {file.path.name} {text.hidden_size}: it is another model's"
        )
    ids = _token_ids(file, kind.tokens.values())
    data = {**read.data, **{key: ids[word] for key, word in kind.tokens.items()}, "architectures": [read.architecture]}
    try:
        return vision_of(read.architecture, data, read.processor, text)
    except ModelLoadError as error:
        raise keys.fault(str(error)) from None


def _token_ids(file: GGUFFile, words: Iterable[str]) -> dict[str, int]:
    """Raises ModelLoadError: the vocabulary lacks a word."""
    wanted = set(words)
    tokens = file.metadata.get("tokenizer.ggml.tokens", ())
    ids = {token: number for number, token in enumerate(tokens) if token in wanted}
    if missing := sorted(wanted - ids.keys()):
        raise ModelLoadError(f"{file.path}: its vocabulary has no token {', '.join(missing)} for pictures")
    return ids
