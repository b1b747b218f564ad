"""The fenced blocks of README.md and docs/, and the commands in them.

A block without a language holds commands, one a line; `console` blocks hold them behind `$ `, with what they print, in
which `...` stands for anything. A comment before a block says what the tests may do with it:

    <!-- only parsed: WHY -->     its flags, paths and names are looked at; it is not run
    <!-- slow: WHY -->            it is run by `make test-slow`
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *sorted(ROOT.glob("docs/*.md"))]
URL = re.compile(r"(http://)?(127\.0\.0\.1|localhost):800\d\b|^URL$")
"""A server on the pages."""
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>only parsed|slow): (?P<why>.+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """`line`: of its fence. `mark`: 'only parsed', 'slow' or None."""

    page: str
    line: int
    kind: str
    mark: str | None
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command. `words`: without `.venv/bin/`, redirections and what sets variables. `stdin`: a file, or None."""

    words: tuple[str, ...]
    stdin: str | None
    is_piped: bool
    printed: str = ""

    @property
    def is_mistake(self) -> bool:
        """The page shows what is said to it."""
        return "did you mean" in self.printed or "error:" in self.printed


def blocks() -> list[Block]:
    """All of them, in order."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text[: match.start("kind")].count("\n") + 1
            name = str(page.relative_to(ROOT)).removeprefix("docs/")
            found.append(Block(name, line, match["kind"], match["mark"], match["text"]))
    return found


def command_blocks() -> list[Block]:
    """Those that hold commands."""
    return [block for block in blocks() if block.kind in ("", "console")]


def commands(block: Block) -> list[Command]:
    """The commands of a block."""
    if block.kind == "":
        return [_command(text) for text in _statements(block.text)]
    found = []
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        statement, printed = _first_statement(part)
        found.append(_command(statement, printed))
    return found


def expected(printed: str) -> re.Pattern[str]:
    """What matches an output that a page shows."""
    return re.compile(r"[\s\S]*?".join(map(re.escape, printed.strip().split("..."))))


def _statements(text: str) -> list[str]:
    found = []
    while text.strip():
        statement, text = _first_statement(text)
        if shlex.split(statement, comments=True):
            found.append(statement)
    return found


def _first_statement(text: str) -> tuple[str, str]:
    """The first command, over as many lines as its quotes and backslashes hold together, and the rest."""
    lines = text.splitlines(keepends=True)
    for number in range(1, len(lines) + 1):
        statement = "".join(lines[:number])
        try:
            shlex.split(statement, comments=True)
        except ValueError:  # a quote is open
            continue
        if not statement.rstrip("\n").endswith("\\"):
            return statement.strip(), "".join(lines[number:])
    raise ValueError(f"no command ends: {text!r}")


def _command(statement: str, printed: str = "") -> Command:
    inner = re.fullmatch(r"source <\((.*?)\).*", statement, re.S)
    words = shlex.split((inner[1] if inner else statement).replace("\\\n", " "), comments=True)
    is_piped = "|" in words
    words = words[words.index("|") + 1 :] if is_piped else words
    if "&" in words:
        words.remove("&")
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    stdin = None
    if "<" in words:
        place = words.index("<")
        stdin = words[place + 1]
        del words[place : place + 2]
    words[0] = words[0].removeprefix(".venv/bin/")
    return Command(tuple(words), stdin, is_piped, printed)
