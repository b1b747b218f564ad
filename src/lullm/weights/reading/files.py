"""The files of a checkpoint: which there are, which tensors each holds, and what is missing."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from lullm.config.json_file import read_object
from lullm.errors import ModelLoadError
from lullm.units import MIB

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_LARGEST_INDEX = 64 * MIB  # 90,000 tensors of a mixture of experts take 9 MB


def missing_files(folder: Path) -> list[str]:
    """Weight files that `folder` should hold and does not; empty if it is complete.

    Raises:
        ModelLoadError: the index is damaged.
    """
    if (folder / INDEX_FILE).exists():
        return sorted(name for name in set(_read_index(folder).values()) if not (folder / name).is_file())
    return [] if (folder / SINGLE_FILE).is_file() else [SINGLE_FILE]


def weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """Files to read and the tensors to take from each; None: all of them.

    Raises:
        ModelLoadError: a file is missing, or the index is damaged.
    """
    if missing := missing_files(folder):
        raise ModelLoadError(_explain_missing(folder, missing))
    if not (folder / INDEX_FILE).exists():
        return {folder / SINGLE_FILE: None}
    files: dict[Path, set[str] | None] = {}
    for name, file_name in _read_index(folder).items():
        names = files.setdefault(folder / file_name, set())
        assert names is not None
        names.add(name)
    return files


def _read_index(folder: Path) -> dict[str, str]:
    path = folder / INDEX_FILE
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


def damaged(path: Path, error: Exception) -> ModelLoadError:
    """The error of a file that cannot be read."""
    return ModelLoadError(f"{path} is damaged or incomplete: {error}; fetch it again")
