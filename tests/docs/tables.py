"""The parts of docs/ that are written from the code, so that none goes stale.

`python -m docs.tables` writes them anew.

A part begins with a line that says so (`Part.start`) and ends before the next blank line. It needs src and tests in
PYTHONPATH.
"""

from collections.abc import Callable
from dataclasses import dataclass

from docs.markdown import ROOT
from kit.model.every import RUNS, recorded
from kit.model.families import CASES
from kit.model.golden import architecture_of
from kit.worker.matrix import EXECUTORS, LAYOUTS, ROWS

from lullm.config.engine import EngineConfig
from lullm.config.option.option import options_of
from lullm.config.option.vllm import VLLM_OPTIONS, VLLM_SERVER_OPTIONS
from lullm.types.vllm_argument import VLLM_CALLS, VLLM_POOLING, VLLM_SAMPLING, VLLM_START, VLLM_STREAMS, VllmArgument

DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Part:
    """A paragraph or a table of a page.

    Args:
        page: a file of docs/. start: how its first line begins, which no other line of the page does.
        make: gives its lines.
    """

    page: str
    start: str
    make: Callable[[], list[str]]

    def split(self) -> tuple[list[str], list[str], list[str]]:
        """The page's lines before the part, of it, and behind it."""
        lines = (DOCS / self.page).read_text().splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith(self.start))
        last = next((number for number, line in enumerate(lines) if number > first and not line), len(lines))
        return lines[:first], lines[first:last], lines[last:]

    def write(self) -> None:
        """Put the part as it should be into the page."""
        before, _, behind = self.split()
        (DOCS / self.page).write_text("\n".join([*before, *self.make(), *behind]) + "\n")


def table(head: str, rows: list[list[str]]) -> list[str]:
    """A table's lines. `head`: its first line."""
    return [head, "|---" * (head.count("|") - 1) + "|", *("| " + " | ".join(row) + " |" for row in rows)]


MODELS = "| architecture | models | features | variants beside transformers |"


def models() -> list[str]:
    return table(
        MODELS,
        [
            [f"`{architecture_of(family)}`", cases.models, cases.features, "; ".join(cases.variants)]
            for family, cases in CASES.items()
        ],
    )


def own_options() -> list[str]:
    """The sentence of docs/from-vllm.md on lullm's options."""
    names = sorted(each.name for each in options_of(EngineConfig))
    return [f"Options of lullm, most of them vLLM's: {', '.join(f'`{name}`' for name in names)}."]


OTHER_OPTIONS = "| option | passes with | why, or what to do instead |"


def other_options() -> list[str]:
    """vLLM's options that lullm lacks."""
    return _vllms(OTHER_OPTIONS, VLLM_OPTIONS)


OTHER_FLAGS = "| flag of `vllm serve` | passes with | why, or what to do instead |"


def other_flags() -> list[str]:
    """Those that are no engine's options, and that lullm lacks."""
    known = {f"--{name.replace('_', '-')}": argument for name, argument in VLLM_SERVER_OPTIONS.items()}
    return _vllms(OTHER_FLAGS, known)


OTHER_PARAMS = "| argument of `SamplingParams` | passes with | why, or what to do instead |"


def other_params() -> list[str]:
    """vLLM's sampling parameters that lullm lacks."""
    return _vllms(OTHER_PARAMS, VLLM_SAMPLING)


OTHER_ARGUMENTS = "| argument of calls | passes with | why, or what to do instead |"


def other_arguments() -> list[str]:
    """Those of vLLM's calls that lullm lacks."""
    return _vllms(OTHER_ARGUMENTS, VLLM_CALLS | VLLM_STREAMS | VLLM_START | VLLM_POOLING)


def _vllms(head: str, arguments: dict[str, VllmArgument]) -> list[str]:
    rows = []
    for name, argument in sorted(arguments.items()):
        values = "any value" if argument.passes else "None" if argument.default is None else f"`{argument.default!r}`"
        rows.append([f"`{name}`", values, argument.advice])
    return table(head, rows)


EVERY = "| of transformers, without a family here | architectures |"


def every() -> list[str]:
    found: dict[str, list[str]] = {}
    for architecture, word in recorded().items():
        found.setdefault(word, []).append(architecture.removesuffix("ForCausalLM"))
    order = sorted(found, key=lambda word: (word != RUNS, -len(found[word])))
    heads = {word: "runs" if word == RUNS else f"refused: {word}" for word in order}
    heads |= {word: word for word in order if word.startswith("not tried")}
    return table(EVERY, [[heads[word], ", ".join(found[word])] for word in order])


PROCESSES = "| tokens of one worker, in processes |"


def processes() -> list[str]:
    """What tests/executor/test_matrix.py runs."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in ROWS:
        found.setdefault(row.layout, {}).setdefault(row.executor, []).append(row.preemption)
    heads = {layout: ", ".join(f"`{name}={value}`" for name, value in LAYOUTS[layout].items()) for layout in found}
    return table(
        f"{PROCESSES} {' | '.join(EXECUTORS)} |",
        [
            [heads[layout], *(", ".join(by.get(each, ["not run"])) for each in EXECUTORS)]
            for layout, by in found.items()
        ],
    )


def parts() -> list[Part]:
    """All of them."""
    from docs.server_tables import CODES, ENDPOINTS, FIELDS, FLAGS, codes, endpoints, fields, flags

    return [
        Part("models.md", MODELS, models),
        Part("models.md", EVERY, every),
        Part("distributed.md", PROCESSES, processes),
        Part("from-vllm.md", "Options of lullm, ", own_options),
        Part("from-vllm.md", OTHER_OPTIONS, other_options),
        Part("from-vllm.md", OTHER_FLAGS, other_flags),
        Part("from-vllm.md", OTHER_PARAMS, other_params),
        Part("from-vllm.md", OTHER_ARGUMENTS, other_arguments),
        Part("endpoints.md", ENDPOINTS, endpoints),
        Part("endpoints.md", FIELDS, fields),
        Part("endpoints.md", CODES, codes),
        Part("endpoints.md", FLAGS, flags),
    ]


if __name__ == "__main__":
    for part in parts():
        part.write()
