"""An ARM64 machine that is emulated: Debian's Python, torch and the native ops, run by qemu as a program of this one.

    python tests/ops/emulated/machine.py [FOLDER]

fetches what it needs into FOLDER (build/arm64; Debian 12, 1.2 GB, nothing is installed) and builds the library there.
`LULLM_ARM64` names another folder for the tests.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("LULLM_ARM64") or ROOT / "build/arm64")
COMPILER = "aarch64-linux-gnu-g++"
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
TORCH = "torch==2.10.0"
"""The last whose ARM64 wheel on the package index is for a CPU alone; newer ones want 2 GB of CUDA."""

_DEBS = ["python3", "libstdc++6", "libgomp1", "libgfortran5", "libatomic1"]
_OTHERS = ["filelock", "fsspec", "networkx", "sympy", "typing-extensions", "setuptools", "gguf", "httpx", "pytest"]
_PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in range(36, 16, -1)] + ["manylinux2014_aarch64"]
"""Those of the glibc of Debian 12 and of each one before it: pip takes no wheel of a platform that it is not told."""


def absence() -> str | None:
    """Why there is no such machine here, for people; None if there is one."""
    if QEMU is None:
        return "no qemu-aarch64 (Debian: qemu-user-static)"
    if shutil.which(COMPILER) is None:
        return f"no {COMPILER} (Debian: g++-aarch64-linux-gnu)"
    if not (FOLDER / "packages/torch").is_dir():
        return f"no ARM64 Python in {FOLDER} (make arm64)"
    return None


def build_library() -> Path:
    """Compiles the native ops of this checkout; what has not changed is not compiled again."""
    build = FOLDER / "library"
    toolchain = ROOT / "cmake/aarch64-linux.cmake"
    options = [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DSKBUILD_STATE=none"]
    _run("cmake", "-S", ROOT, "-B", build, *options)
    _run("cmake", "--build", build, "-j", len(os.sched_getaffinity(0)))
    return build / "liblullm_cpu.so"


def run(*args: object, cpu: str = "max", timeout: float = 1800) -> str:
    """What the emulated Python prints. `cpu`: a processor that qemu knows; `max` has all that it emulates.

    Raises:
        AssertionError: it ends with another code than 0.
    """
    assert QEMU is not None
    paths = [ROOT / "src", ROOT / "tests", FOLDER / "packages"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "LULLM_CPU_LIBRARY": str(FOLDER / "library/liblullm_cpu.so"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [QEMU, "-cpu", cpu, "-L", FOLDER / "root", FOLDER / "root/usr/bin/python3", *args]
    found = subprocess.run(
        [str(word) for word in command], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    assert found.returncode == 0, f"{found.stdout[-4000:]}\n{found.stderr[-4000:]}"
    return found.stdout


def prepare() -> None:
    _fetch_system()
    _fetch_packages()
    build_library()


def _fetch_system() -> None:
    """Debian's packages, by an apt that knows nothing of this machine's own."""
    state = FOLDER / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    settings = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "Dir::State": state,
        "Dir::State::lists": state / "lists", "Dir::State::status": state / "status", "Dir::Cache": state / "cache",
    }  # fmt: skip
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    _run("apt-get", *options, "update")
    _run("apt-get", *options, "-y", "--download-only", "--no-install-recommends", "install", *_DEBS)
    for deb in sorted((state / "cache/archives").glob("*.deb")):
        _run("dpkg", "-x", deb, FOLDER / "root")


def _fetch_packages() -> None:
    """Wheels for the emulated Python, of lullm's dependencies and of what its tests import."""
    assert QEMU is not None
    python = [QEMU, "-L", FOLDER / "root", FOLDER / "root/usr/bin/python3"]
    version = _run(*python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))").strip()
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    others = [name for name in wanted if not name.startswith("torch")] + _OTHERS
    tag = "cp" + version.replace(".", "")
    options = ["--target", FOLDER / "packages", "--only-binary", ":all:", "--python-version", version, "--upgrade"]
    options += [word for name in _PLATFORMS for word in ("--platform", name)]
    options += [word for name in (tag, "abi3", "none") for word in ("--abi", name)]
    for packages in (["--no-deps", TORCH], others):
        _run(sys.executable, "-m", "pip", "install", "-q", "--implementation", "cp", *options, *packages)


def _run(*command: object) -> str:
    found = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if found.returncode != 0:
        raise SystemExit(f"{command[0]} failed with code {found.returncode}:\n{found.stdout[-4000:]}")
    return found.stdout


if __name__ == "__main__":
    if len(sys.argv) > 1:
        FOLDER = Path(sys.argv[1]).resolve()
    prepare()
    print(absence() or f"{FOLDER}: {run('-c', 'import lullm.ops.cpu.library as l; print(l.load_library())')}")
