"""`python -m lullm` is the command `lullm`, which begins here, too."""

import signal
import sys
from collections.abc import Callable


def _imported() -> Callable[[], int]:
    """The command. Ctrl-C during its imports (0.2 s) ends the process as it ends others: without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    is_usual = handler is signal.default_int_handler  # a parent may have it ignored, as `nohup` does
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from lullm.cli.main import main
    finally:
        if is_usual:
            signal.signal(signal.SIGINT, handler)
    return main


main = _imported()

if __name__ == "__main__":
    sys.exit(main())
