"""The loader: streams a folder of safetensors, or a GGUF file, into a model, and accounts for every name.

The files are mapped, not read into buffers, so loading needs memory for the parameters and the page cache only. Several
threads copy pieces of tensors, because one thread spends as much time on page faults as on copying. Files overlap: the
next file's pieces are copied beside the last pieces of the one before.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.ops.table import Ops
from lullm.ops.threads import torch_threads
from lullm.units import MIB, format_bytes
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.joining import Joining, whole_name
from lullm.weights.reading.mapped import MappedWeights
from lullm.weights.reading.progress import Progress
from lullm.weights.reading.source import open_source
from lullm.weights.rows.cut import clear_gaps
from lullm.weights.rows.place import Rows
from lullm.weights.rows.several import TransposedRows, takes
from lullm.weights.rule import dense_modules
from lullm.weights.target import Loadable, WeightTargets

logger = get_logger(__name__)

_PIECE_BYTES = 16 * MIB


def load_weights(
    model: Loadable,
    folder: Path,
    ops: Ops,
    num_threads: int = 1,
    mapped: MappedWeights | None = None,
    mmproj: Path | None = None,
) -> None:
    """Fill the materialised parameters of `model` from `folder`. Blocking; a terminal shows the progress.

    A gigabyte from the page cache takes 0.2 s with two threads; from a disk, the disk's time.

    Args:
        mapped: takes the tensors that may stay in their files for now.
        mmproj: the file beside a GGUF file that reads pictures.

    Raises:
        ModelLoadError: no weights, a file is missing or damaged, or tensors are missing, unexpected or of the
            wrong shape; the message names every one of them. The parameters are then partly filled.
    """
    clear_gaps(model.named_parameters(), model.cuts)
    for name, parameter in model.named_parameters():
        if model.rules.is_zero(name):
            parameter.zero_()
    reading = _Reading(model, folder, ops, mapped, mmproj)
    # With several threads here, torch must not split each copy over threads again.
    with torch_threads(1), ThreadPoolExecutor(num_threads) as pool, Progress("weights", reading.num_bytes) as progress:
        written: list[Future[int]] = []
        try:
            for piece in reading.pieces():
                written.append(pool.submit(piece.write))
            for future in as_completed(written):
                progress.add(future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    reading.finish()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows `values` for `rows` from `first_row` on. They take `num_bytes` in the files."""

    rows: Rows
    first_row: int
    values: Tensor | EncodedTensor
    num_bytes: int

    def write(self) -> int:
        """Write the rows; this thread is the first to touch their pages. Returns the bytes in the files."""
        values = self.values
        with torch.inference_mode():  # a mode belongs to one thread
            if isinstance(values, Tensor):
                self.rows.write(values, self.first_row)
            else:
                stored = values.rows(self.rows.bits) if self.rows.bits else None
                self.rows.write(values.decode() if stored is None else stored, self.first_row)
        return self.num_bytes


class _Reading:
    """The tensors of a folder, and those that are missing or wrong."""

    def __init__(self, model: Loadable, folder: Path, ops: Ops, mapped: MappedWeights | None, mmproj: Path | None):
        self._mapped = mapped
        self._source = open_source(folder, dense_modules(name for name, _ in model.named_parameters()), mmproj)
        self._folder = folder
        rules = self._source.rules(model.rules)
        self._joins = rules.joins
        self._canonical_name = rules.canonical_name
        self._targets = WeightTargets(model, ops, rules)
        self._missing = {name for name in self._targets.names if not rules.is_zero(name)}
        self._joining = Joining(self._joins, self._source.names() if self._joins else ())
        self._faults: list[str] = []
        self._num_decoded = self._num_decoded_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return self._source.num_bytes

    def pieces(self) -> Iterator[_Piece]:
        """The pieces of all files. Wrong tensors are collected for `finish`. Raises ModelLoadError: a damaged file."""
        for name, tensor, num_bytes in self._source.tensors():
            yield from self._pieces_of(name, tensor, num_bytes)
        for rows, tensor in self._mapped.left_over() if self._mapped is not None else ():
            yield from _cut(rows, tensor, tensor.nbytes)

    def finish(self) -> None:
        """Raises ModelLoadError: tensors were missing or wrong; it names all of them."""
        for name, part in self._joining.incomplete():
            self._faults.append(f"missing tensor {part}")
            self._missing.discard(self._canonical_name(name))
        self._faults += [f"missing tensor {name}" for name in sorted(self._missing)]
        if self._faults:
            lines = "\n  ".join(self._faults)
            raise ModelLoadError(f"the weights in {self._folder} do not fit its config:\n  {lines}")
        if self._num_decoded:
            logger.info(
                "%d quantized tensors (%s in the files) are decoded: in memory they take what the weights' type takes",
                self._num_decoded,
                format_bytes(self._num_decoded_bytes),
            )

    def _pieces_of(self, name: str, tensor: Tensor | EncodedTensor, num_bytes: int) -> Iterator[_Piece]:
        try:
            whole = self._joining.add(name, tensor) if isinstance(tensor, Tensor) else (name, tensor)
            target = None if whole is None else self._targets.find(*whole)
        except ModelLoadError as error:
            self._faults.append(str(error))
            self._missing.discard(self._canonical_name(whole_name(self._joins, name)))  # not missing, too
            return
        if whole is None or target is None:
            return
        self._missing -= {target.name} | target.stands_for
        values = whole[1]
        if self._mapped is not None and self._mapped.take(target, values):
            return
        if values is not tensor:
            num_bytes = self._joining.num_bytes(whole[0])
        if not isinstance(values, Tensor) and not target.rows.bits:
            self._num_decoded += 1
            self._num_decoded_bytes += num_bytes
        yield from _cut(target.rows, values, num_bytes)


def _cut(rows: Rows, values: Tensor | EncodedTensor, num_bytes: int) -> Iterator[_Piece]:
    """Runs of rows, so that no thread writes a whole vocabulary alone at the end. Leaves out runs of other workers."""
    if isinstance(values, Tensor):
        values = torch.atleast_1d(values)
    if isinstance(rows, TransposedRows):
        yield _Piece(rows, 0, values, num_bytes)
        return
    num_rows = max(1, _PIECE_BYTES * len(values) // max(values.nbytes, 1))
    for number, piece in enumerate(values.split(num_rows)):
        if not takes(rows, number * num_rows, len(piece)):
            continue
        yield _Piece(rows, number * num_rows, piece, num_bytes * len(piece) // max(len(values), 1))
