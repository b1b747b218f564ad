"""Python loads this when it starts, if the folder is on its path: then a row of `gpu-check` meets the fake GPU.

The command that starts the rows needs no GPU and gets toy limits only. See kit/device/rehearsal.py.
"""

import os
import sys

import toys

toys.install()
if "GPU_CHECK_ROW" in os.environ or "-c" in sys.orig_argv:  # a row and all that it starts; what asks for the GPU's name
    from kit.device import rehearsal

    rehearsal.enter()
