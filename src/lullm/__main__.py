"""`python -m lullm` is the command `lullm`."""

import sys

from lullm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
