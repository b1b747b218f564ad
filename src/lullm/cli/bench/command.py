"""`lullm bench`: one command per measurement, each with its own flags."""

from lullm.cli.parser import Command, CommandParser

EXAMPLES = """\
examples:
  lullm bench latency --input-len 128 --output-len 64 --batch-size 4
  lullm bench throughput path/to/folder --num-prompts 32 --json run.json
  lullm bench startup path/to/folder
  lullm bench serve --url http://127.0.0.1:8000 --request-rate 4"""

COMMANDS = (
    Command("latency", "how long one batch of prompts takes", "lullm.cli.bench.latency"),
    Command("throughput", "how many tokens a second a list of prompts gives", "lullm.cli.bench.throughput"),
    Command("startup", "how long a start takes", "lullm.cli.bench.startup"),
    Command("serve", "how a server answers under load", "lullm.cli.bench.serve"),
)


def add_flags(parser: CommandParser) -> None:
    """Add the description and flags of `lullm bench`."""
    parser.description = (
        "Measure how long one batch takes (latency), how much a list of prompts gives (throughput), how "
        "long a start takes (startup), or how a server answers under load (serve)."
    )
    parser.epilog = EXAMPLES
    parser.add_commands("what", COMMANDS)
