"""The wheel: built from the sdist, for a known glibc, installed by pip and uv in a clean environment, used outside."""

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import lullm

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
NEWEST_GLIBC = (2, 36)
"""Debian 12's; a build on an older system works on older ones, too."""


METADATA = f"lullm-{lullm.__version__}.dist-info/METADATA"


def call(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own["PATH"] = f"{BIN}{os.pathsep}{own['PATH']}"
    own |= env or {}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """What `make sdist wheel` puts there; a wheel that WHEEL_FOLDER names is not built again."""
    if "WHEEL_FOLDER" in os.environ:
        return Path(os.environ["WHEEL_FOLDER"])
    folder = tmp_path_factory.mktemp("dist")
    # Without --wheel and --sdist the wheel is built from the sdist, so that this holds all that a build needs.
    call(sys.executable, "-m", "build", "--outdir", folder / "raw", ROOT)
    call(BIN / "auditwheel", "repair", "--wheel-dir", folder, *(folder / "raw").glob("*.whl"))
    for path in (folder / "raw").glob("*.tar.gz"):
        path.rename(folder / path.name)
    return folder


@pytest.fixture(scope="module")
def wheel(dist) -> Path:
    [path] = dist.glob("*.whl")
    return path


def test_its_tag(wheel):
    """One for all Pythons, and for each Linux with that glibc or a newer one."""
    found = re.fullmatch(r"lullm-(.+)-py3-none-manylinux_(\d+)_(\d+)_x86_64", wheel.stem)
    assert found and found[1] == lullm.__version__ and (int(found[2]), int(found[3])) <= NEWEST_GLIBC


def test_what_is_in_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(METADATA))
    ours = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "lullm").rglob("*")
        if path.is_file() and "csrc" not in path.parts and path.suffix not in (".pyc", ".so")
    }
    assert ours - names == set()
    others = {name for name in names - ours if ".dist-info/" not in name and not name.endswith("/")}
    assert others == {"lullm/ops/cpu/liblullm_cpu.so"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert metadata["Requires-Python"] == ">=3.11" and metadata["License-Expression"] == "Apache-2.0"
    assert wheel.stat().st_size < 20e6


def test_the_sdist(dist):
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "src/lullm/ops/cpu/csrc/replay.cpp"} <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "PKG-INFO", "src"}
    assert not any(name.endswith((".so", ".pyc")) for name in names) and path.stat().st_size < 20e6


def install(installer: str, wheel: Path, folder: Path) -> Path:
    """Into an environment of its own without what lullm depends on; returns where it lies."""
    home = folder / "clean"
    source = ("--no-index", "--find-links", wheel.parent)
    if installer == "uv tool":  # this one has no --no-deps
        needs = email.message_from_string(zipfile.Path(wheel, METADATA).read_text()).get_all("Requires-Dist")
        (folder / "excludes").write_text(
            "\n".join(re.match(r"[\w-]+", need)[0] for need in needs if "extra ==" not in need)
        )
        env = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
        call(BIN / "uv", "tool", "install", *source, "--excludes", folder / "excludes", "--python", sys.executable,
             "lullm", env=env)  # fmt: skip
        assert (folder / "bin" / "lullm").exists()
        return folder / "tools" / "lullm"
    venv.create(home, with_pip=installer == "pip")
    python = home / "bin" / "python"
    pip = [BIN / "uv", "pip", "install", "--python", python] if installer == "uv" else [python, "-m", "pip", "install"]
    call(*pip, *source, "--no-deps", "lullm")
    return home


@pytest.mark.parametrize("installer", ["pip", "uv", "uv tool"])
def test_it_works_outside_of_the_checkout(installer, wheel, tmp_path):
    """With the libraries of the tests' own environment: torch is not fetched again."""
    home = install(installer, wheel, tmp_path)
    python = home / "bin" / "python"
    [libraries] = home.glob("lib/python*/site-packages")
    # As plain paths: the finder of an editable install must not come along.
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    (libraries / "of_the_tests.pth").write_text("\n".join(theirs) + "\n")
    command = home / "bin" / "lullm"
    assert call(command, "--version", cwd=tmp_path) == f"lullm {lullm.__version__}\n"
    assert call(command, "run", "demo", "--temp", "0", "What is 17 + 25?", cwd=tmp_path).strip() == "17 + 25 = 42."
    where = call(python, "-c", "import lullm; print(lullm.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(libraries)
    done = subprocess.run([command, "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {finding["topic"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["native ops"]["status"] == "ok", found
