"""The loader: streams a folder of safetensors, or a GGUF file, into a model, and accounts for every name.

The files are mapped, not read into buffers, so loading needs memory for the parameters and the page cache only. Several
threads copy pieces of tensors, because one thread spends as much time on page faults as on copying.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lullm.config.gguf.file import is_gguf, read_gguf
from lullm.config.json_file import read_object
from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.ops.table import Ops
from lullm.ops.threads import torch_threads
from lullm.units import MIB, format_bytes
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.joining import Joining, whole_name
from lullm.weights.gguf.checkpoint import tensors as gguf_tensors
from lullm.weights.rows import Rows, TransposedRows
from lullm.weights.rule import WeightRules
from lullm.weights.target import Loadable, WeightTargets

logger = get_logger(__name__)

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_PIECE_BYTES = 16 * MIB
_LARGEST_INDEX = 64 * MIB  # 90,000 tensors of a mixture of experts take 9 MB

_Piece = tuple[Rows, int, Tensor | EncodedTensor]  # where to, from which row on, what


def load_weights(model: Loadable, folder: Path, ops: Ops, num_threads: int = 1) -> None:
    """Fill the materialised parameters of `model` from `folder`. Blocking.

    A gigabyte from the page cache takes 0.2 s with two threads; from a disk it takes as long as the disk needs.

    Raises:
        ModelLoadError: no weights, a file is missing or damaged, or tensors are missing, unexpected or of the
            wrong shape; the message names every one of them. The parameters are then partly filled.
    """
    rules = rules_for(folder, model.rules)
    targets = WeightTargets(model, ops, rules)
    missing = set(targets.names)
    joining = Joining(rules.joins)
    faults: list[str] = []
    for tensors in _files(folder):
        pieces: list[_Piece] = []
        for name, tensor in tensors:
            try:
                whole = joining.add(name, tensor) if isinstance(tensor, Tensor) else (name, tensor)
                target = None if whole is None else targets.find(*whole)
            except ModelLoadError as error:
                faults.append(str(error))
                missing.discard(rules.canonical_name(whole_name(rules.joins, name)))  # not missing, too
            else:
                if whole is not None and target is not None:
                    missing.discard(target.name)
                    pieces += _cut(target.rows, whole[1])
        _write_all(pieces, num_threads)
    for name, part in joining.incomplete():
        faults.append(f"missing tensor {part}")
        missing.discard(rules.canonical_name(name))
    faults += [f"missing tensor {name}" for name in sorted(missing)]
    if faults:
        raise ModelLoadError(f"the weights in {folder} do not fit its config:\n  " + "\n  ".join(faults))
    if joining.num_joined:
        logger.info(
            "%d encoded tensors were decoded (%s in the files); in memory they take what the weights' type takes",
            joining.num_joined,
            format_bytes(joining.num_bytes),
        )


def rules_for(folder: Path, rules: WeightRules) -> WeightRules:
    """The rules for what is stored: a GGUF file holds Gemma's 1 + w as they are, and every expert by itself."""
    return replace(rules, offsets=(), stacks=(), joins=()) if is_gguf(folder) else rules


def _files(folder: Path) -> Iterator[Iterator[tuple[str, Tensor | EncodedTensor]]]:
    """Of each file the tensors with their names, mapped: nothing is read yet."""
    if is_gguf(folder):
        yield gguf_tensors(read_gguf(folder))
        return
    for path, names in weight_files(folder).items():
        yield _safetensors(path, names)


def _safetensors(path: Path, names: set[str] | None) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            stored = set(file.keys())
            for name in sorted(stored if names is None else stored & names):
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path} is damaged or incomplete: {error}; fetch it again") from None


def _cut(rows: Rows, values: Tensor | EncodedTensor) -> list[_Piece]:
    """Runs of rows, so that at the end no thread has a whole vocabulary to itself."""
    if isinstance(values, Tensor):
        values = torch.atleast_1d(values)
    if isinstance(rows, TransposedRows):
        return [(rows, 0, values)]
    num_rows = max(1, _PIECE_BYTES * len(values) // max(values.nbytes, 1))
    return [(rows, number * num_rows, piece) for number, piece in enumerate(values.split(num_rows))]


def _write_all(pieces: list[_Piece], num_threads: int) -> None:
    """Write the pieces. The threads that write are the first to touch the pages."""

    def write(piece: _Piece) -> None:
        rows, first_row, values = piece
        with torch.inference_mode():  # a mode belongs to one thread
            rows.write(values if isinstance(values, Tensor) else values.decode(), first_row)

    # With several threads here, torch must not split each copy over threads once more.
    with torch_threads(1), ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(write, pieces))


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
    return f"{folder} lacks the weight files {', '.join(missing)}"
