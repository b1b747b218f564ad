"""Schemes: the storage formats of a quantized checkpoint's matrices, as plain data."""

import re
import time
from dataclasses import dataclass, field
from typing import Literal

from lullm.errors import ModelLoadError

_LONGEST_NAME = 128
"""Characters of a module name to search an expression in: the longest known has 90. Three repeats in one of 128 take up
to 0.03 s, in one of 1,000 a minute.
"""
_MOST_SEARCH_S = 5.0
"""For all names of a checkpoint. 40,000 names take 0.05 s with the expressions of real checkpoints."""

Packing = Literal["plain", "rows", "awq", "gptq", "hqq"]
"""The layout of the integers of a matrix `[out, in]`.

plain: int8 `[out, in]`. rows: int32 `[out, in x bits / 32]`. awq: int32 `[in, out x bits / 32]`, with its own order of
outputs. gptq: int32 `[in x bits / 32, out]`. The first of the integers of a word is in its low bits. hqq: uint8 `[out x
groups x bits / 8, group]`: a row is a group; the first run of groups is in the high bits, the next below.
"""


@dataclass(frozen=True, slots=True)
class IntegerScheme:
    """A weight is (integer - zero point) x scale.

    Args:
        group_size: inputs that share scale and zero point; None: all of a row.
        is_symmetric: all zero points are the middle of the range.
        zero_offset: added to a stored zero point.
        has_order: a tensor has the group of each input.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool
    packing: Packing
    zero_offset: int = 0
    has_order: bool = False


@dataclass(frozen=True, slots=True)
class AffineScheme:
    """A weight is integer x scale + offset, both of its group of so many inputs."""

    bits: int
    group_size: int


@dataclass(frozen=True, slots=True)
class Float8Scheme:
    """A weight is a number of 8 bits (e4m3) x scale. block: (outputs, inputs) of a scale; None: a row or the tensor."""

    block: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Float4Scheme:
    """A weight is a number of 4 bits (e2m1) x the scale of its group.

    Args:
        group_size: inputs that share a scale. 32: it is a power of two (MXFP4); 16: a number of 8 bits (e4m3), beside a
            scale of the tensor (NVFP4).
    """

    group_size: Literal[16, 32]


@dataclass(frozen=True, slots=True)
class TableScheme:
    """A weight is an entry of a table of 16 x the scale of its run; tensors beside it hold the table and the runs."""


@dataclass(frozen=True, slots=True)
class NativeScheme:
    """lullm's own files: digits of 4 bits, a scale of every 16 inputs and one of the row, as in memory."""


Scheme = IntegerScheme | AffineScheme | Float8Scheme | Float4Scheme | TableScheme | NativeScheme


@dataclass(frozen=True, slots=True)
class Targets:
    """Modules of a checkpoint. A list may have hundreds of names, and a checkpoint 40,000 modules: names are sets.

    Args:
        names: whole names, or classes ("Linear", "Embedding").
        patterns: regular expressions, which match from the start of a name.
        parts: runs of a name between dots, such as "lm_head" or "mlp.gate".
        spent: seconds of searches so far, at most `_MOST_SEARCH_S`.
    """

    names: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()
    parts: frozenset[str] = frozenset()
    spent: list[float] = field(default_factory=lambda: [0.0], compare=False, repr=False)

    def rank(self, module: str) -> int:
        """How precisely the module is named: 3 by name, 2 by an expression or a part, 1 by its class, 0 not at all.

        Raises:
            ModelLoadError: the expressions cannot be searched in bounded time.
        """
        if module in self.names:
            return 3
        if self._matches(module) or self._has_part(module):
            return 2
        return int(("Embedding" if _EMBEDDING.search(module) else "Linear") in self.names)

    def _matches(self, module: str) -> bool:
        if not self.patterns or self is EVERYTHING:
            return self is EVERYTHING
        if len(module) > _LONGEST_NAME or self.spent[0] > _MOST_SEARCH_S:
            raise ModelLoadError(
                f"config.json: quantization_config: its expressions take too long to find in {module[:80]}"
                f"{'...' * (len(module) > 80)}, of {len(module)} characters; name the modules instead"
            )
        started = time.perf_counter()
        found = any(pattern.match(module) for pattern in self.patterns)
        self.spent[0] += time.perf_counter() - started
        return found

    def _has_part(self, module: str) -> bool:
        if not self.parts:
            return False
        words = module.split(".")
        runs = (".".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1))
        return any(run in self.parts for run in runs)


EVERYTHING = Targets(patterns=(re.compile(""),))
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte)$")


@dataclass(frozen=True, slots=True)
class CheckpointEncoding:
    """The contents of a `quantization_config`: which modules are stored in which scheme.

    Args:
        method: `quant_method`.
        groups: schemes, and the modules of each.
        ignored: modules that are not quantized.
        quantization: the type that lullm wrote the checkpoint for; loading quantizes its floating-point matrices to it.
    """

    method: str
    groups: tuple[tuple[Targets, Scheme], ...]
    ignored: Targets = Targets()
    quantization: Literal[None, "int8"] = None

    def scheme_of(self, module: str) -> Scheme | None:
        """The scheme of a quantized module, by the checkpoint's name; None: it should not be quantized."""
        if self.ignored.rank(module):
            return None
        ranked = [(targets.rank(module), scheme) for targets, scheme in self.groups]
        best, scheme = max(ranked, key=lambda item: item[0], default=(0, None))
        return scheme if best else None
