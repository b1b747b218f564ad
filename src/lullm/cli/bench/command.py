"""`lullm bench`: one command for what is measured, each with flags of its own."""

import argparse

from lullm.cli.bench import latency, serve, startup, throughput

EXAMPLES = """\
examples:
  lullm bench latency --input-len 128 --output-len 64 --batch-size 4
  lullm bench throughput path/to/folder --num-prompts 32 --json run.json
  lullm bench startup path/to/folder
  lullm bench serve --url http://127.0.0.1:8000 --request-rate 4"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The sub-command, and those below it."""
    parser = commands.add_parser(
        "bench",
        help="measure an engine, its start, or a server under load",
        description="Measure how long one batch takes (latency), how much a list of prompts gives (throughput), how "
        "long a start takes (startup), or how a server answers under load (serve).",
        epilog=EXAMPLES,
    )
    what = parser.add_subparsers(metavar="COMMAND", dest="what", required=True)
    for command in (latency, throughput, startup, serve):
        command.add_parser(what)
