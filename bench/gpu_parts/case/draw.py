"""Drawing from a production vocabulary, against the sampler of the CPU: parameters, rows, and what must be equal."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lullm.ops.draw_table import DrawTable
from lullm.sampling.race import choose_tokens
from lullm.sampling.truncation import scale_by_temperature_, truncate_
from lullm.types.sampling_params import SamplingParams

VOCAB_SIZE = 151_936
SMALL_VOCAB_SIZE = 3 * 1024 + 77
"""Of the interpreter, whose turns take 1024 logits and whose room holds 64."""

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 40, "temperature": 2.0},
    {"top_k": 700},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999999, "temperature": 5.0},
    {"top_k": 50, "top_p": 0.8},
    {"min_p": 0.1},
    {"min_p": 0.3, "top_p": 0.95, "top_k": 100, "temperature": 1.5},
]
SPREADS = {"peaked": 8.0, "broad": 1.0, "flat": 0.05, "equal": 0.0}
"""Standard deviations of the logits. A top_p of flat rows has more candidates than the kernel's room."""

MASS_BOUND = 2e-5
"""Sums of probabilities in another order: this much of a row's mass may be kept by one and dropped by the other."""


@dataclass(frozen=True, slots=True)
class DrawCase:
    spread: str
    vocab_size: int = VOCAB_SIZE
    num_rows: int = 8  # of each of the parameters

    @property
    def name(self) -> str:
        return f"drawing, {self.spread} rows of {self.vocab_size}"

    def small(self) -> "DrawCase":
        return DrawCase(self.spread, SMALL_VOCAB_SIZE, 1)


def all_draws() -> list[DrawCase]:
    return [DrawCase(spread) for spread in SPREADS]


def num_runs(device: torch.device) -> int:
    """Of a case, whose bits must be equal. The interpreter runs programs one after the other: one run says all."""
    return 1 if device.type == "cpu" else 2


def table_of(params: list[SamplingParams], keys: list[int], vocab_size: int, device: torch.device) -> DrawTable:
    top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
    floors = [math.log(p.min_p) if p.min_p else -math.inf for p in params]
    return DrawTable(
        temperatures=torch.tensor([p.temperature for p in params], dtype=torch.float32).to(device),
        top_k=torch.tensor(top_k, dtype=torch.int32).to(device),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float64).to(device),
        min_p_floors=torch.tensor(floors).to(device),
        keys=torch.tensor(keys, dtype=torch.int64).to(device),
    )


def check_draw(case: DrawCase, device: torch.device, draw_tokens: Any) -> dict[str, float]:
    """Draws from all rows. Raises AssertionError that names the row's parameters.

    Returns:
        'overflows': rows that keep more tokens than the kernel's room holds; 'moved_mass': the most mass of a row that
        one keeps and the other drops.
    """
    from lullm.ops.triton.tile import SAMPLING_ROOM

    generator = torch.Generator().manual_seed(case.vocab_size)
    params = [SamplingParams(**options) for options in OPTIONS for _ in range(case.num_rows)]
    logits = torch.randn(len(params), case.vocab_size, generator=generator) * SPREADS[case.spread]
    logits[:: case.num_rows + 1, 1 :: case.vocab_size // 7] = -math.inf  # restrictions
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, len(params)).tolist()
    table = table_of(params, keys, case.vocab_size, device)
    found = []
    for _ in range(num_runs(device)):
        given = logits.to(device, copy=True)
        tokens = draw_tokens(given, table, writes_logits=True)
        found.append((tokens.cpu(), given.cpu()))
    tokens, kept = found[0]
    assert torch.equal(tokens, found[-1][0]) and torch.equal(kept, found[-1][1]), "other bits in a second run"
    expected_tokens, expected = drawn_on_host(logits, params, keys)
    moved = num_overflows = 0.0
    for row, (options, got, wanted) in enumerate(zip(params, kept, expected, strict=True)):
        what = f"row {row}, {OPTIONS[row // case.num_rows]}"
        if options.temperature == 0.0:
            assert tokens[row] == logits[row].argmax(), what
            continue
        if options.top_p == 1.0:
            assert torch.equal(got, wanted), f"{what}: not the same tokens kept"
            assert tokens[row] == expected_tokens[row], what
        else:
            moved = max(moved, moved_mass(got, wanted))
            assert moved <= MASS_BOUND, f"{what}: {moved:.1e} of the mass kept or dropped otherwise"
            assert tokens[row] == choose_tokens(got[None], torch.tensor(keys[row : row + 1])).item(), what
        num_overflows += got.isfinite().sum().item() > SAMPLING_ROOM
    return {"overflows": num_overflows, "moved_mass": moved}


def drawn_on_host(logits: Tensor, params: list[SamplingParams], keys: list[int]) -> tuple[Tensor, Tensor]:
    """(tokens, the logits that were drawn from) of the CPU's sampler; greedy rows are not its own."""
    logits = logits.clone()
    scale_by_temperature_(logits, logits.amax(-1), params)
    truncate_(logits, params)
    return choose_tokens(logits, torch.tensor(keys)), logits


def moved_mass(got: Tensor, wanted: Tensor) -> float:
    """The share of a row's mass that only one of the two keeps; what both keep must be equal."""
    both = got.isfinite() & wanted.isfinite()
    assert torch.equal(got[both], wanted[both]), "other distances"
    mass = torch.where(got.isfinite(), got, wanted).double().exp()
    return (mass[got.isfinite() != wanted.isfinite()].sum() / mass.sum()).item()
