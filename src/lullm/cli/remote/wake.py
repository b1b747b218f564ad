"""`lullm wake`: make a sleeping server restore its memory."""

import argparse

from lullm.cli.flag.key import ADMIN_KEY_VARIABLE, API_KEY_VARIABLE
from lullm.cli.remote.server import RemoteServer, add_server_flags
from lullm.cli.remote.sleep import ADMIN_KEY_HELP
from lullm.types.sleep import TAGS


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm wake`."""
    parser.description = (
        "Bring back what a sleeping server has released; kept requests go on. Returns once all is there."
    )
    parser.add_argument("--tags", nargs="+", choices=TAGS, help="what comes back (default: all)")
    parser.add_argument("--model", metavar="NAME", help="which of several models (default: the only one)")
    add_server_flags(parser, "--admin-key", ADMIN_KEY_HELP, ADMIN_KEY_VARIABLE, API_KEY_VARIABLE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Wake the server. Raises LullmError."""
    wish = {name: value for name, value in (("tags", args.tags), ("model", args.model)) if value is not None}
    answer = RemoteServer(args.url, args.key).post("/wake_up", wish)
    if not answer["was_sleeping"]:
        print("awake already")
    elif not answer["is_sleeping"]:
        print(f"awake: {answer['seconds']:.2f} s")
    else:
        print(f"still asleep: {', '.join(answer['sleeping_tags']) or 'paused'}")
    return 0
