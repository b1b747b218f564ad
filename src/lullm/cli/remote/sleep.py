"""`lullm sleep`: make a running server release its memory."""

import argparse
import typing
import urllib.parse
from typing import Any

from lullm.cli.flag.key import ADMIN_KEY_VARIABLE, API_KEY_VARIABLE
from lullm.cli.remote.server import RemoteServer, add_server_flags
from lullm.types.sleep import TAGS, BackupTarget, SleepMode
from lullm.units import format_bytes

ADMIN_KEY_HELP = "the server's --admin-key; its --api-key if it has no admin key"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm sleep`."""
    parser.description = (
        "Make a server that was started with --enable-sleep-mode release its memory until `lullm wake`. "
        "Returns once the memory is released."
    )
    parser.add_argument(
        "--level",
        type=int,
        choices=(0, 1, 2),
        default=1,
        help="0 pauses, 1 keeps what is needed to go on, 2 keeps nothing; deepens a sleep (default: %(default)s)",
    )
    parser.add_argument(
        "--mode",
        choices=typing.get_args(SleepMode),
        default="keep",
        help="requests that are not finished are kept and go on after waking, finished first, or aborted "
        "(default: %(default)s)",
    )
    parser.add_argument("--tags", nargs="+", choices=TAGS, help="what is released (default: both)")
    parser.add_argument(
        "--backup",
        choices=typing.get_args(BackupTarget),
        default="auto",
        help="where what is needed to go on is kept (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-prefix-cache", action="store_true", help="keep cached prefixes that no request holds, too"
    )
    parser.add_argument("--explain", action="store_true", help="only say what it would free and how long it would take")
    parser.add_argument("--model", metavar="NAME", help="which of several models (default: the only one)")
    add_server_flags(parser, "--admin-key", ADMIN_KEY_HELP, ADMIN_KEY_VARIABLE, API_KEY_VARIABLE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Put the server to sleep. Raises LullmError."""
    server = RemoteServer(args.url, args.key)
    wish: dict[str, Any] = {"level": args.level, "backup": args.backup, "keep_prefix_cache": args.keep_prefix_cache}
    wish |= {} if args.tags is None else {"tags": args.tags}
    wish |= {} if args.model is None else {"model": args.model}
    if args.explain:
        forecast = server.get_json("/sleep/explain?" + urllib.parse.urlencode(wish, doseq=True))
        print(
            f"would free {format_bytes(forecast['frees_bytes'])}, back up {format_bytes(forecast['backs_up_bytes'])}; "
            f"{forecast['sleep_seconds']:.2f} s to sleep, {forecast['wake_seconds']:.2f} s to wake"
        )
        return 0
    answer = server.post("/sleep", wish | {"mode": args.mode})
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
