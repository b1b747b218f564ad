"""Finds the mmproj file of a model: named by the user, or beside the model's file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from lullm.config.gguf.file import SUFFIX
from lullm.config.json_file import given_path
from lullm.errors import ModelLoadError

AUTO, NONE = "auto", "none"
"""Values of the option `mmproj` beside a file's path."""
_WORD = "mmproj"
_TYPE = re.compile(r"(?<![a-z0-9])(bf16|fp16|f16|fp32|f32|q8_0)(?![a-z0-9])")
_TYPES = ("f16", "fp16", "bf16", "q8_0", "f32", "fp32")
"""Types of numbers in names, the one to take first: most files are F16, which all of llama.cpp's programs read."""
_QUANTIZATION = re.compile(r"[-._](bf16|fp?16|fp?32|i?q\d\w*|mxfp4\w*|tq\d\w*|\d{5}-of-\d{5}).*$")
_SNAPSHOTS = "snapshots"
"""The hub's cache has each revision in a folder of this one."""


@dataclass(frozen=True, slots=True)
class Found:
    """path: of the file; None: there is none, for this `reason`."""

    path: Path | None
    reason: str = ""


def is_mmproj(name: str | PurePath) -> bool:
    """Whether a file of this name holds a tower and no model."""
    path = PurePath(name)
    return path.suffix.lower() == SUFFIX and _WORD in path.name.lower()


def choose_mmproj(names: Sequence[str], model: str) -> str | None:
    """The mmproj file of a model among the paths of a repository: in its folder, or in the nearest one above it.

    Of several there, those whose names have the model's; then one of each tower, F16 first.

    Raises ModelLoadError: several are left.
    """
    for folder in PurePath(model).parents:
        beside = sorted(name for name in names if is_mmproj(name) and PurePath(name).parent == folder)
        stem = _stem(PurePath(model))
        own = [name for name in beside if stem in PurePath(name).name.lower()] or beside
        if len({_without_type(name) for name in own}) > 1:
            listed = ", ".join(PurePath(name).name for name in own[:8])
            raise ModelLoadError(f"several files beside it read pictures ({listed}); give one of them as mmproj")
        if own:
            return min(own, key=_rank)
    return None


def find_mmproj(model: Path, wish: str) -> Found:
    """The mmproj file of the model at this path. Blocks on the disk.

    Args:
        wish: a path, 'none', or 'auto' for one beside the model; of a model of the hub, also in folders above.

    Raises ModelLoadError: there is no file at that path.
    """
    if wish == NONE:
        return Found(None, "mmproj='none' turns pictures off")
    if wish != AUTO:
        path = given_path(wish)
        if not path.is_file():
            raise ModelLoadError(f"mmproj: there is no file {path}")
        return Found(path)
    top = next((folder for folder in model.parents if folder.parent.name == _SNAPSHOTS), model.parent)
    folders = [folder for folder in model.parents if folder == top or top in folder.parents]
    try:
        names = [str(path.relative_to(top)) for folder in folders for path in folder.iterdir() if is_mmproj(path)]
        chosen = choose_mmproj(names, str(model.relative_to(top)))
    except (OSError, ModelLoadError) as error:
        return Found(None, str(error))
    if chosen is None:
        return Found(None, f"no *{_WORD}*{SUFFIX} is beside its file; give one (mmproj)")
    return Found(top / chosen)


def _stem(model: PurePath) -> str:
    """The name of the model alone, in lower case."""
    return _QUANTIZATION.sub("", model.name.lower().removesuffix(SUFFIX))


def _without_type(name: str) -> str:
    return _TYPE.sub("", PurePath(name).name.lower())


def _rank(name: str) -> tuple[int, str]:
    match = _TYPE.search(PurePath(name).name.lower())
    return _TYPES.index(match[1]) if match else len(_TYPES), name
