"""`lullm doctor`: what it finds, what it advises, and when it says that lullm cannot be used."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lullm.cli import doctor
from lullm.cli.main import main
from lullm.machine import processor
from lullm.ops.cpu import library

ROOT = Path(__file__).parent.parent.parent


def forget_library():
    for asked_once in (library.load_library, library.absence, library.mismatch):
        asked_once.cache_clear()


@pytest.fixture(autouse=True)
def fresh_library():
    """What `load_library` says depends on the environment, and it asks once."""
    forget_library()
    yield
    forget_library()


@pytest.fixture(autouse=True)
def imports_that_work():
    """Trying them takes seconds; `tests/machine/test_imports.py` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "failed_imports", lambda modules: {})
        yield


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """`tree(path, text)`: a file under the root that the doctor looks at; a machine without anything special."""
    monkeypatch.setattr(doctor, "_ROOT", tmp_path)

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("proc/meminfo", "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n")
    write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    write("proc/mounts", "/dev/root / ext4 rw 0 0\n")
    return write


def found(topic):
    (finding,) = (finding for finding in doctor.examine() if finding.topic == topic)
    return finding


def test_this_machine(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"lullm can be used here; (1 hint|\d+ hints)$", lines[-1])
    topics = {line[2:].split("  ")[0] for line in lines if line[:1] in " !X" and not line.startswith("   ")}
    assert topics >= {"lullm", "Python", "processor", "native ops", "threads", "memory", "GPU", "hub cache", "torch"}


def test_json(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["usable"] is True
    assert all(set(finding) == {"topic", "text", "status", "advice"} for finding in report["findings"])


def test_it_loads_no_torch():
    code = "import sys; from lullm.cli.main import main; main(['doctor']); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.splitlines()[-1] == "False"


def test_the_libraries_are_those_of_the_project():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {f"{name}>={oldest}" for name, (_, oldest) in doctor.REQUIRED.items()} == set(dependencies)


def test_a_missing_and_an_old_library_are_problems(monkeypatch, capsys):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: {"xxhash": None, "torch": "2.9.1+cpu"}.get(name, real(name)))
    assert main(["doctor"]) == doctor.UNUSABLE
    out = capsys.readouterr().out
    assert "-> pip install 'xxhash>=3.4'" in out
    assert "-> too old: pip install 'torch>=2.11'" in out
    assert "lullm cannot be used here yet" in out


def test_a_library_that_cannot_be_imported_is_a_problem(monkeypatch, capsys):
    """It said "lullm can be used here" next to a torch without its libraries."""
    monkeypatch.setattr(doctor, "failed_imports", lambda modules: {"yaml": "ImportError: libyaml.so"})
    assert main(["doctor"]) == doctor.UNUSABLE
    assert re.search(
        r"X pyyaml .* cannot be imported: ImportError: libyaml.so\n.*--force-rein", capsys.readouterr().out
    )


def test_versions_compare_as_numbers():
    assert doctor._numbers("2.13.0+cpu") == (2, 13, 0) > doctor._numbers("2.9.1")
    assert doctor._numbers("2.12.0rc1") == (2, 12)


def test_native_ops_switched_off_or_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("LULLM_CPU_ISA", "none")
    finding = found("native ops")
    assert finding.status == "advice" and "unset LULLM_CPU_ISA" in finding.advice
    forget_library()
    monkeypatch.delenv("LULLM_CPU_ISA")
    monkeypatch.setenv("LULLM_CPU_LIBRARY", str(tmp_path / "nothing.so"))
    finding = found("native ops")
    assert finding.status == "advice" and "C++ compiler" in finding.advice and "not built" in finding.text


def test_a_stale_native_library_is_to_be_built_again(monkeypatch):
    """There is a compiler: it built this library, from other sources."""
    stale = "liblullm_cpu.so was built from other sources than csrc holds; build it again (pip install -e .)"
    monkeypatch.setattr(library, "mismatch", lambda: stale)
    monkeypatch.setattr(library, "absence", lambda: stale)
    monkeypatch.setattr(library, "load_library", lambda: None)
    finding = found("native ops")
    assert finding.status == "advice" and finding.text == stale
    assert "build the library again" in finding.advice and "compiler" not in finding.advice


@pytest.mark.skipif(library.absence() is not None, reason=str(library.absence()))
def test_an_instruction_set_that_is_not_there_is_a_problem(monkeypatch):
    monkeypatch.setenv("LULLM_CPU_ISA", "sse9")
    finding = found("native ops")
    assert finding.status == "problem" and "sse9" in finding.text


@pytest.mark.skipif(library.absence() is not None, reason=str(library.absence()))
def test_a_lesser_instruction_set_and_one_that_the_system_withholds(monkeypatch):
    available = library.load_library().available_isas
    if len(available) > 1:
        library.load_library.cache_clear()
        monkeypatch.setenv("LULLM_CPU_ISA", available[0])
        assert found("native ops").advice == f"unset LULLM_CPU_ISA for {available[-1]}"
        library.load_library.cache_clear()
        monkeypatch.delenv("LULLM_CPU_ISA")
    monkeypatch.setattr(doctor, "_isa_levels", lambda: [*available, "avx1024"])
    assert "the processor has avx1024" in found("native ops").advice


def test_instruction_sets_are_told_by_the_flags_of_either_architecture(monkeypatch):
    for flags, levels in (
        ("fp asimd atomics", "neon"),
        ("fp asimd asimddp bf16", "neon, neon_bf16"),
        ("avx2 fma avx512f", "avx2"),
    ):
        monkeypatch.setattr(doctor.processor, "flags", lambda flags=flags: frozenset(flags.split()))
        assert found("instruction sets").text == levels
    monkeypatch.setattr(doctor.processor, "flags", frozenset)
    assert found("instruction sets").status == "advice"


@pytest.mark.parametrize(
    ("omp", "cores", "quota", "status", "text"),
    [
        (None, 8, None, "ok", "8 (8 cores allowed, no CPU quota"),
        (None, 8, 2.0, "ok", "2 (8 cores allowed, CPU quota 2"),
        ("16", 8, None, "advice", "16 (OMP_NUM_THREADS=16"),
        ("1", 8, None, "advice", "1 (OMP_NUM_THREADS=1"),
    ],
)
def test_threads(monkeypatch, omp, cores, quota, status, text):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    monkeypatch.setattr(processor, "num_cores", lambda cpus: cores)
    monkeypatch.setattr(processor, "cpu_quota", lambda: quota)
    finding = found("threads")
    assert finding.status == status
    assert finding.text.startswith(text)


def test_memory_and_huge_pages(tree):
    assert found("memory").text == "16.0 GiB available of 32.0 GiB"
    assert found("huge pages").status == "ok"
    tree("proc/self/cgroup", "0::/\n")
    tree("sys/fs/cgroup/memory.max", "1073741824\n")
    tree("sys/fs/cgroup/memory.current", "268435456\n")
    assert found("memory").status == "advice"
    assert found("memory").text == "768.0 MiB available of 32.0 GiB, of which this control group may have 1.0 GiB"
    tree("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    assert "echo madvise" in found("huge pages").advice


def test_a_gpu_is_named(tree, monkeypatch):
    assert found("GPU").text.startswith("none") and found("GPU").status == "ok"
    tree("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 5\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor, "_version", {"torch": "2.13.0+cpu"}.get)
    finding = found("GPU")
    assert finding.text == "NVIDIA H200 (no triton)" and finding.status == "advice"
    assert "torch 2.13.0+cpu is built for CPUs only" in finding.advice and "pip install triton" in finding.advice
    monkeypatch.setattr(doctor, "_version", {"torch": "2.13.0+cu130", "triton": "3.9.0"}.get)
    monkeypatch.setattr(doctor, "EngineConfig", lambda device: None)
    monkeypatch.setattr(doctor.gpu, "_missing_package", lambda: None)
    assert found("GPU").status == "ok" and found("GPU").text.endswith("; used by default")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = found("GPU")
    assert finding.text.endswith("; used with --device cuda only: CUDA_VISIBLE_DEVICES hides the GPU")


def test_a_temporary_folder_in_memory(tree):
    assert found("folder for sleep").status == "ok"
    tree("proc/mounts", "/dev/root / ext4 rw 0 0\ntmpfs / tmpfs rw 0 0\n")
    assert "--sleep-dir" in found("folder for sleep").advice


def test_the_hub_cache(monkeypatch, tmp_path):
    (tmp_path / "models--a--b").mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert found("hub cache").text == f"{tmp_path}: 1 models, offline (HF_HUB_OFFLINE)"


def test_what_cannot_be_examined_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_ROOT", tmp_path / "nowhere")
    finding = found("memory")
    assert finding.status == "advice" and "could not be examined" in finding.text
    assert found("torch").status == "ok"
