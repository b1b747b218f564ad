"""The results of a load run: throughput, percentiles, and goodput: the requests within their bounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lullm.cli.bench.record import summary
from lullm.cli.bench.stream import Sample
from lullm.errors import ConfigError

PERCENTILES = (50, 90, 95, 99)
TIMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between tokens",
    "e2e": "whole request",
}


def parse_bounds(texts: Sequence[str]) -> dict[str, float]:
    """`['ttft:200', 'tpot:50']` -> milliseconds by name. Raises ConfigError."""
    bounds = {}
    for text in texts:
        name, _, number = text.partition(":")
        try:
            bounds[name] = float(number)
        except ValueError:
            bounds[name] = -1.0
        if name not in ("ttft", "tpot", "e2e") or not bounds[name] > 0:
            raise ConfigError(f"--goodput: {text!r} is not ttft, tpot or e2e with milliseconds, such as ttft:200")
    return bounds


def times_ms(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Milliseconds by the names of `TIMES`."""
    found: dict[str, list[float]] = {name: [] for name in TIMES}
    for sample in samples:
        found["ttft"].append(1000 * sample.first_s)
        found["e2e"].append(1000 * sample.e2e_s)
        found["itl"] += [1000 * gap_s for gap_s in sample.gaps_s]
        if sample.per_token_s is not None:
            found["tpot"].append(1000 * sample.per_token_s)
    return found


@dataclass(frozen=True, slots=True)
class Report:
    """One run. `seconds`: from the first request to the end of the last. `bounds_ms`: of the goodput."""

    samples: Sequence[Sample]
    seconds: float
    bounds_ms: Mapping[str, float]

    @property
    def good(self) -> list[Sample]:
        """The requests that did not fail."""
        return [sample for sample in self.samples if sample.error is None]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: milliseconds, tokens, and rates per second."""
        good = self.good
        prompt, output = (sum(getattr(each, name) for each in good) for name in ("num_prompt", "num_output"))
        return {
            "seconds": self.seconds,
            "completed": len(good),
            "failed": len(self.samples) - len(good),
            "prompt_tokens": prompt,
            "output_tokens": output,
            "requests_per_s": len(good) / self.seconds,
            "output_tokens_per_s": output / self.seconds,
            "tokens_per_s": (prompt + output) / self.seconds,
            **{f"{name}_ms": summary(values, PERCENTILES) for name, values in times_ms(good).items()},
            "goodput": self._goodput() if self.bounds_ms else None,
            "errors": sorted({sample.error for sample in self.samples if sample.error is not None}),
        }

    def _goodput(self) -> dict[str, Any]:
        num = sum(self._meets(sample) for sample in self.good)
        share = num / len(self.samples)
        return {"bounds_ms": dict(self.bounds_ms), "requests_per_s": num / self.seconds, "share": share}

    def _meets(self, sample: Sample) -> bool:
        per_token_s = sample.per_token_s or 0.0  # an answer of one token has none
        found = {"ttft": sample.first_s, "tpot": per_token_s, "e2e": sample.e2e_s}
        return all(1000 * found[name] <= bound for name, bound in self.bounds_ms.items())

    def text(self) -> str:
        """The table for the terminal."""
        found = self.as_dict()
        lines = [
            f"{found['completed']} requests in {self.seconds:.2f} s, {found['failed']} failed; "
            f"{found['prompt_tokens']} prompt tokens, {found['output_tokens']} output tokens",
            f"{found['requests_per_s']:.2f} requests/s, {found['output_tokens_per_s']:.1f} output tokens/s, "
            f"{found['tokens_per_s']:.1f} tokens/s",
        ]
        if found["goodput"] is not None:
            bounds = ", ".join(f"{name} <= {bound:g} ms" for name, bound in self.bounds_ms.items())
            goodput = found["goodput"]
            lines.append(f"goodput {goodput['requests_per_s']:.2f} requests/s ({goodput['share']:.0%}; {bounds})")
        columns = ("mean", *(f"p{percent}" for percent in PERCENTILES), "max")
        lines += ["", f"{'ms':24}" + "".join(f"{column:>10}" for column in columns)]
        for name, text in TIMES.items():
            row = found[f"{name}_ms"]
            cells = (f"{row[column]:>10.2f}" if row else f"{'-':>10}" for column in columns)
            lines.append(f"{text:24}" + "".join(cells))
        return "\n".join([*lines, *(f"error: {error}" for error in found["errors"][:5])])
