"""`lullm sleep`: make a running server release its memory."""

import argparse
import typing

from lullm.cli.remote import RemoteServer, add_server_flags
from lullm.types.sleep import TAGS, SleepMode
from lullm.units import format_bytes

ADMIN_KEY_HELP = "the server's --admin-key; its --api-key if it has no admin key"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The sub-command and its flags."""
    parser = commands.add_parser(
        "sleep",
        help="make a running server release its memory",
        description="Make a server that was started with --enable-sleep-mode release its memory until `lullm wake`. "
        "Returns once the memory is released.",
    )
    parser.add_argument(
        "--level",
        type=int,
        choices=(0, 1, 2),
        default=1,
        help="0 pauses, 1 keeps what is needed to go on, 2 keeps nothing (default: %(default)s)",
    )
    parser.add_argument(
        "--mode",
        choices=typing.get_args(SleepMode),
        default="keep",
        help="requests that are not finished are kept and go on after waking, finished first, or aborted "
        "(default: %(default)s)",
    )
    parser.add_argument("--tags", nargs="+", choices=TAGS, help="what is released (default: both)")
    add_server_flags(parser, "--admin-key", ADMIN_KEY_HELP)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Put the server to sleep. Raises LullmError."""
    body = {"level": args.level, "mode": args.mode} | ({} if args.tags is None else {"tags": args.tags})
    answer = RemoteServer(args.url, args.key).post("/sleep", body)
    if answer["tags"]:
        freed, saved = max(answer["freed_bytes"], 0), answer["backed_up_bytes"]
        print(
            f"asleep (level {answer['level']}: {', '.join(answer['tags'])}): {format_bytes(freed)} freed, "
            f"{format_bytes(saved)} backed up, {answer['seconds']:.2f} s"
        )
    elif answer["sleeping_tags"]:
        print(f"asleep already: {', '.join(answer['sleeping_tags'])}")
    else:
        print("paused")
    return 0
