"""The files of a checkpoint: their names, the tensors of each, and missing ones."""

import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from lullm.config.json_file import read_object, refuse_pointer
from lullm.config.mistral.layout import has_own_layout
from lullm.errors import ModelLoadError
from lullm.units import MIB

SINGLE_FILE = "model.safetensors"
INDEX_FILE = f"{SINGLE_FILE}.index.json"
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors")
_MOST_SHARDS = 4096
_LARGEST_INDEX = 64 * MIB  # 90,000 tensors of a mixture of experts take 9 MB


def missing_files(folder: Path) -> list[str]:
    """Weight files that `folder` should hold and does not; empty if it is complete.

    Raises:
        ModelLoadError: the index is damaged.
    """
    of_dense = [f"{path.parent.name}/{SINGLE_FILE}" for path in folder.glob("*_Dense/config.json")]
    return _missing_in(folder) + sorted(name for name in of_dense if not (folder / name).is_file())


def _missing_in(folder: Path) -> list[str]:
    """The same without the folders of sentence-transformers' layers."""
    if _index_file(folder).exists():
        return sorted(name for name in set(_read_index(folder).values()) if not (folder / name).is_file())
    return [name for name in _without_index(folder) if not (folder / name).is_file()]


def weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """Files to read and the tensors to take from each; None: all of them.

    Raises:
        ModelLoadError: a file is missing, or the index is damaged.
    """
    if missing := _missing_in(folder):
        raise ModelLoadError(_explain_missing(folder, missing))
    if not _index_file(folder).exists():
        return {folder / name: None for name in _without_index(folder)}
    files: dict[Path, set[str] | None] = {}
    for name, file_name in _read_index(folder).items():
        names = files.setdefault(folder / file_name, set())
        assert names is not None
        names.add(name)
    return files


def dense_file(folder: Path, module: str) -> Path:
    """The file of a layer of sentence-transformers in the folder `module`. Raises ModelLoadError: it is missing."""
    path = folder / module / SINGLE_FILE
    if not path.is_file():
        raise ModelLoadError(_explain_missing(path.parent, [SINGLE_FILE]))
    return path


def weights_stem(folder: Path) -> str:
    """How the names of its weight files begin."""
    return "consolidated" if has_own_layout(folder) else "model"


def _index_file(folder: Path) -> Path:
    return folder / f"{weights_stem(folder)}.safetensors.index.json"


def _without_index(folder: Path) -> list[str]:
    """One file, or all shards of a set. Raises ModelLoadError: shards of several sets."""
    stem = weights_stem(folder)
    single = f"{stem}.safetensors"
    if (folder / single).is_file() or not folder.is_dir():
        return [single]
    names = [path.name.removeprefix(stem) for path in folder.iterdir() if path.name.startswith(stem)]
    counts = {int(match[2]) for name in names if (match := _SHARD.fullmatch(name))}
    if len(counts) > 1 or max(counts, default=0) > _MOST_SHARDS:
        raise ModelLoadError(
            f"{folder} holds shards of several checkpoints, and no {_index_file(folder).name}; fetch the folder again"
        )
    count = counts.pop() if counts else 0
    return [f"{stem}-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)] or [single]


def _read_index(folder: Path) -> dict[str, str]:
    path = _index_file(folder)
    weight_map = read_object(path, _LARGEST_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise ModelLoadError(f"{path} cannot be used: weight_map must map tensor names to file names")
    for name in set(weight_map.values()):
        if Path(name).name != name:
            raise ModelLoadError(f"{path} names a file outside its folder: {name!r}")
    return weight_map


def _explain_missing(folder: Path, missing: list[str]) -> str:
    if not folder.is_dir():
        return f"there is no model folder {folder}"
    others = sorted(path.name for path in folder.glob("*.safetensors") if path.is_file())
    if missing == [SINGLE_FILE] and "adapter_model.safetensors" in others:
        return f"{folder} holds an adapter (PEFT) without its model; give the model, and this as a lora_request"
    if missing == [SINGLE_FILE] and any(name.startswith("consolidated") for name in others):
        return (
            f"{folder} holds {others[0]}, in Mistral's own layout, which is read beside params.json and without "
            f"config.json; take the copy that holds {SINGLE_FILE}, or a folder of that layout alone"
        )
    if missing == [SINGLE_FILE] and others:
        return f"{folder} holds {', '.join(others[:4])} and no {SINGLE_FILE}; if it is the whole model, rename it so"
    if missing == [SINGLE_FILE] and (list(folder.glob("*.bin")) or list(folder.glob("*.pt*"))):
        return f"{folder} holds pickled weights only; lullm reads safetensors only (convert them, or take a newer copy)"
    return f"{folder} lacks the weight files {', '.join(missing)}; fetch the folder again"


def stored_names(folder: Path) -> frozenset[str]:
    """The names of all tensors of a checkpoint. Raises ModelLoadError as `weight_files` does; a file is damaged."""
    names: set[str] = set()
    for path, listed in weight_files(folder).items():
        if listed is not None:
            names |= listed
            continue
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                names.update(file.keys())
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from None
    return frozenset(names)


def damaged(path: Path, error: Exception | str) -> ModelLoadError:
    """The error of a file of safetensors that could not be read."""
    try:
        with path.open("rb") as file:
            refuse_pointer(path, file.read(64))
    except ModelLoadError as pointer:
        return pointer
    except OSError as closed:  # the library takes a file that it may not read for a missing one
        return ModelLoadError(f"{path} cannot be read: {closed.strerror}")
    return ModelLoadError(f"{path} is damaged or incomplete: {error}; fetch it again")
