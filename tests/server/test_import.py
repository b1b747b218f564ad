"""The server room loads no torch."""

import os
import subprocess
import sys


def test_no_torch():
    program = "import sys, lullm.server.http_server; sys.exit('torch' in sys.modules)"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", program], env=env, check=False).returncode == 0
