"""Markdown out of the lines of `gpu_check.py`: goals, rows, what failed, what was not reached, all figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_parts.row import FIRST, ROWS

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A line of the table: a figure of a `what`, divided by its ceiling if it has one, and what it should reach."""

    what: str
    figure: tuple[str, str]
    ceiling: tuple[str, str] | None
    least: float
    unit: str


GOALS = (
    Goal("decode 1 stream, 8B, graphs", ("decode-8b", "graphs_gb_per_s"), ("ceilings", "copy_gb_per_s"), 0.70, "GB/s"),
    Goal("decode 1 stream, 0.6B, graphs", ("decode-0.6b", "graphs_gb_per_s"), ("ceilings", "copy_gb_per_s"), 0.45,
         "GB/s"),
    Goal("nano-vLLM's mix, by transformers'", ("mix", "output_tok_per_s"), ("mix-peer", "output_tok_per_s"), 3.0,
         "tok/s"),
    Goal("paged decode kernel, 32 x 4k", ("shipped tiles", "decode_gb_per_s"), ("ceilings", "copy_gb_per_s"), 0.85,
         "GB/s"),
    Goal("prefill kernel, 8k", ("shipped tiles", "prefill_tflop_per_s"), ("ceilings", "bf16_tflop_per_s"), 0.60,
         "TFLOP/s"),
    Goal("sleep level 1, 8B", ("sleep-8b", "level1_sleep_gb_per_s"), ("ceilings", "to_host_gb_per_s"), 0.80, "GB/s"),
    Goal("wake-up from level 1, 8B", ("sleep-8b", "level1_wake_gb_per_s"), ("ceilings", "to_device_gb_per_s"), 0.80,
         "GB/s"),
    Goal("memory released at level 1, 8B", ("sleep-8b", "level1_released"), None, 0.90, "of what was held"),
    Goal("level 2, graphs recorded again", ("sleep-8b", "recaptured"), None, 0.0, "(none is the goal)"),
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """What came of a row. `state`: 'passed', 'failed', 'not measured' (all was skipped) or 'not run'."""

    row: str
    state: str
    seconds: float
    commit: str
    passed: list[str]
    failed: dict[str, str]  # what -> its error
    skipped: dict[str, str]
    missed: list[str]  # planned, without a line


def outcome_of(row: str, lines: Sequence[Line]) -> Outcome:
    """Of the lines of one row, whether it has ended or not."""
    begun = next((line for line in lines if line["state"] == "begun"), {})
    ended = next((line for line in lines if line["state"] == "ended"), {})
    passed = [line["what"] for line in lines if line["state"] == "passed"]
    failed = {line["what"]: line["error"] for line in lines if line["state"] == "failed"}
    skipped = {line["what"]: line["why"] for line in lines if line["state"] == "skipped"}
    planned = [name for line in lines if line["state"] == "planned" for name in line["names"]]
    reached = {*passed, *failed, *skipped}
    missed = [name for name in planned if name not in reached]
    if not begun:
        state = "not run"
    elif ended.get("why"):
        state = "not measured"
        skipped[row] = ended["why"]
    elif not ended:
        state, missed = "failed", missed or ["its end"]
    else:
        if ended["code"] != 0 and not failed:
            failed[row] = ended["last_words"]
        ended_well = "passed" if passed else "not measured"
        state = "failed" if failed or missed or not reached else ended_well
    return Outcome(row, state, ended.get("seconds", 0.0), begun.get("commit", ""), passed, failed, skipped, missed)


def outcomes_of(lines: Sequence[Line]) -> list[Outcome]:
    """Of all rows of the first command, and of those of the rest that were begun."""
    by_row: dict[str, list[Line]] = {}
    for line in lines:
        by_row.setdefault(line["row"], []).append(line)
    wanted = [*(row.name for row in FIRST), *(name for name in by_row if name not in {row.name for row in FIRST})]
    return [outcome_of(name, by_row.get(name, [])) for name in wanted if name in ROWS]


def figures_of(lines: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """By what they are of; those of something that has failed count too."""
    return {line["what"]: line["figures"] for line in lines if line.get("figures")}


def document(machine: dict[str, Any], lines: Sequence[Line]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    outcomes, figures = outcomes_of(lines), figures_of(lines)
    parts = [f"# gpu-check\n\n{facts}", "## Goals", goal_table(figures), "## Rows", row_table(outcomes)]
    parts += ["## What was not measured, and what failed", *gaps(outcomes), "## Figures", *all_figures(lines)]
    return "\n\n".join(parts) + "\n"


def goal_table(figures: dict[str, dict[str, Any]]) -> str:
    return "\n".join(["| what | found | ceiling | ratio | goal | |", "|---|--:|--:|--:|--:|---|", *goal_lines(figures)])


def goal_lines(figures: dict[str, dict[str, Any]]) -> list[str]:
    """The largest gap first; what was not measured last."""
    known, missing = [], []
    for goal in GOALS:
        found = figures.get(goal.figure[0], {}).get(goal.figure[1])
        ceiling = 1.0 if goal.ceiling is None else figures.get(goal.ceiling[0], {}).get(goal.ceiling[1])
        if found is None or not ceiling:
            shown = "-" if found is None else f"{found:.0f} {goal.unit}"
            missing.append(f"| {goal.what} | {shown} | - | - | {goal.least:.2f} | not measured |")
            continue
        ratio = found / ceiling
        is_reached = ratio >= goal.least if goal.least else ratio == 0
        shown = "" if goal.ceiling is None else f"{ceiling:.0f}"
        value = f"{found:.2f}" if goal.ceiling is None else f"{found:.0f}"
        verdict = "reached" if is_reached else "missed"
        line = f"| {goal.what} | {value} {goal.unit} | {shown} | {ratio:.2f} | {goal.least:.2f} | {verdict} |"
        known.append((ratio / goal.least if goal.least else 2.0 * is_reached, line))
    return [line for _, line in sorted(known)] + missing


def row_table(outcomes: Sequence[Outcome]) -> str:
    found = ["| row | settles | outcome | s | limit | passed | failed | not reached | commit |",
             "|---|---|---|--:|--:|--:|--:|--:|---|"]  # fmt: skip
    for o in outcomes:
        row = ROWS[o.row]
        found.append(
            f"| {o.row} | {row.settles} | {o.state} | {o.seconds:.0f} | {row.limit_s} | {len(o.passed)} | "
            f"{len(o.failed)} | {len(o.missed)} | {o.commit} |"
        )
    return "\n".join(found)


def gaps(outcomes: Sequence[Outcome]) -> list[str]:
    found = []
    for o in outcomes:
        items = [f"- failed: {what}: {error}" for what, error in o.failed.items()]
        items += [f"- not reached: {what}" for what in o.missed]
        items += [f"- skipped: {what}: {why}" for what, why in o.skipped.items()]
        if o.state == "not run":
            items.append("- not run")
        if items:
            found.append("\n".join([f"{o.row} (log: {o.row}.log):", "", *items]))
    return found or ["Nothing: all rows have run to their ends."]


def all_figures(lines: Sequence[Line]) -> list[str]:
    found = []
    for name in dict.fromkeys(line["row"] for line in lines):
        rows = [line for line in lines if line["row"] == name and line.get("figures")]
        items = [
            f"- {line['what']}: " + ", ".join(f"{k} {shown(v)}" for k, v in line["figures"].items()) for line in rows
        ]
        if items:
            found.append("\n".join([f"{name}:", "", *items]))
    return found


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {shown(v)}" for k, v in value.items()) + "}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
