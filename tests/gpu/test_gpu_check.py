"""The script that checks a GPU, without one: selection, verdicts, the report."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu_check.py"


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_check"]


def test_selection(check, capsys):
    assert check.parse([]).only == list(check.BUDGETS)
    assert check.parse(["--only", "sleep,kernels"]).only == ["kernels", "sleep"]
    with pytest.raises(SystemExit):
        check.parse(["--only", "kernels,nonsense"])
    assert "no part nonsense" in capsys.readouterr().err
    assert check.parse(["--only", "tiles"]).only == ["tiles"] and "tiles" not in check.parse([]).only
    assert check.parse(["--out", "here"]).out == Path("here").resolve()
    assert sum(check.BUDGETS.values()) < 9 * 60


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu(tmp_path):
    command = [sys.executable, str(SCRIPT), "--only", "kernels", "--out", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and "torch sees no GPU" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_python_that_lacks_modules_is_told_so_at_once(check, tmp_path):
    assert check.missing(check.NEEDED) == [] and check.missing(["json", "no_such_module"]) == ["no_such_module"]
    bare = [sys.executable, "-I", "-S", str(SCRIPT), "--out", str(tmp_path / "out")]  # without site-packages
    result = subprocess.run(bare, capture_output=True, text=True)
    assert result.returncode == 2 and "msgspec, xxhash" in result.stderr and "PYTHONPATH" in result.stderr
    assert not (tmp_path / "out").exists()


def test_parts_find_what_was_brought_along(check, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "brought")
    code, printed = check.run([sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])"], 30)
    assert code == 0 and printed == [f"{check.ROOT / 'src'}:brought"]


REPORT = """<testsuites><testsuite><testcase classname="a" name="one"/>
<testcase classname="a" name="two"><failure message="assert 1 == 2"/></testcase>
<testcase classname="a" name="three"><skipped/></testcase></testsuite></testsuites>"""


def test_verdicts(check):
    failed = check.judge("kernels", 1, ["..."], REPORT)
    assert failed.state == "failed" and failed.notes == ["a::two: assert 1 == 2"]
    assert failed.figures == {"passed": 1, "failed": 1, "skipped": 1}
    fine = check.judge("engine", 0, [], '<testsuite><testcase classname="a" name="x"/></testsuite>')
    assert fine.state == "passed" and fine.notes == []
    only_skipped = '<testsuite><testcase name="x"><skipped/></testcase></testsuite>'
    assert check.judge("engine", 0, ["skipped"], only_skipped).state == "failed", "nothing was checked"
    assert check.judge("sleep", -1, ["not done within 5 s"], "").notes == ["not done within 5 s"]
    assert check.judge("sanitizer", 1, ["Error: Device not supported"], "").state == "skipped"
    assert check.judge("bench", 0, [], json.dumps({"mix": {"error": "no"}})).notes == ["mix: no"]
    assert check.judge("bench", 0, [], json.dumps({"mix": {"seconds": 1.0}})).state == "passed"


def test_tile_lines_are_notes(check):
    report = json.dumps({"decode-2-128": {"line": '    ("sm90", 2, 128): DecodeTile(64, 4, 3, 256),', "gain": 1.2}})
    found = check.judge("tiles", 0, [], report)
    assert found.state == "passed"
    assert found.notes == ['`("sm90", 2, 128): DecodeTile(64, 4, 3, 256),` 1.20 times as fast']
    assert check.judge("tiles", 1, ["no"], report).state == "failed"


FIVE_PARTS = {
    "kernels": f"open({{report}}, 'w').write({REPORT!r}); print('one wrong'); raise SystemExit(1)",
    "engine": "import subprocess, sys, time; print('hangs', flush=True);"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "open({report} + '.pid', 'w').write(str(child.pid)); time.sleep(60)",
    "sleep": "open({report}, 'w').write('<testsuite><testcase name=\"x\"/></testsuite>')",
    "sanitizer": "print('Error: Device not supported'); raise SystemExit(1)",
    "bench": "open({report}, 'w').write('{{\"mix\": {{\"seconds\": 1.0}}}}')",
}


def is_gone(pid):
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


def test_all_parts_in_order(check, tmp_path, monkeypatch, capsys):
    """Stubs: one fails, one hangs with a process of its own, one is skipped, two pass."""

    def command_of(part, report):
        return [sys.executable, "-c", FIVE_PARTS[part].format(report=repr(str(report)))]

    monkeypatch.setattr(check, "command_of", command_of)
    monkeypatch.setattr(check, "gpu", lambda: "X")
    monkeypatch.setattr(check, "machine", lambda name: {"gpu": name})
    monkeypatch.setattr(check, "BUDGETS", {part: 5 if part == "engine" else 60 for part in FIVE_PARTS})
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        check.main()
    assert end.value.code == 1
    found = json.loads((tmp_path / "gpu-check.json").read_text())
    states = {part["part"]: part["state"] for part in found["parts"]}
    assert states == {
        "kernels": "failed", "engine": "failed", "sleep": "passed", "sanitizer": "skipped", "bench": "passed",
    }  # fmt: skip
    hung = found["parts"][1]
    assert hung["notes"] == ["not done within 5 s", "hangs"] and hung["seconds"] < 30
    assert is_gone(int((tmp_path / ".engine.pid").read_text())), "what a part has started holds the device"
    assert "a::two: assert 1 == 2" in (tmp_path / "gpu-check.md").read_text()
    assert "| bench | passed |" in capsys.readouterr().out

    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path), "--only", "sleep,bench"])
    with pytest.raises(SystemExit) as end:
        check.main()
    assert end.value.code == 0


FIGURES = {
    "ceilings": {"copy_gb_per_s": 4000.0, "bf16_tflop_per_s": 800.0, "to_host_gb_per_s": 50.0},
    "decode-8b": {"graphs_gb_per_s": 3000.0},
    "kernels": {"decode_gb_per_s": 1700.0, "prefill_tflop_per_s": 480.0},
    "mix": {"output_tok_per_s": 9000.0},
    "mix-peer": {"error": "not done within 50 s"},
    "sleep-8b": {"level1_released": 0.95},
}


def test_the_largest_gap_stands_first(check):
    lines = check.goal_lines(FIGURES)
    assert len(lines) == len(check.GOALS)
    assert lines[0] == "| paged decode kernel, 32 x 4k | 1700 GB/s | 4000 | 0.42 | 0.85 | missed |"
    assert "| decode 1 stream, 8B, graphs | 3000 GB/s | 4000 | 0.75 | 0.70 | reached |" in lines
    assert any(line.startswith("| memory released at level 1, 8B | 0.95 of what was held |  | 0.95") for line in lines)
    assert sum(line.endswith("not measured |") for line in lines) == 4


def test_what_is_written(check, tmp_path):
    outcomes = [
        check.Outcome("kernels", "failed", 61.4, ["a::two: wrong"], {"passed": 3, "failed": 1, "skipped": 0}),
        check.Outcome("bench", "passed", 200.0, [], FIGURES),
    ]
    check.write(tmp_path, {"gpu": "X", "commit": "abc"}, outcomes)
    document = json.loads((tmp_path / "gpu-check.json").read_text())
    assert document["machine"]["commit"] == "abc" and document["parts"][1]["figures"] == FIGURES
    text = (tmp_path / "gpu-check.md").read_text()
    assert "gpu X, commit abc" in text
    assert "| kernels | failed | 61 | 3 passed, 1 failed |" in text and "- a::two: wrong" in text
    assert "| what | found | ceiling | ratio | goal | |" in text


def test_commands(check, tmp_path, monkeypatch):
    monkeypatch.setattr(check.shutil, "which", lambda name: None)
    assert check.command_of("sanitizer", tmp_path) is None
    monkeypatch.setattr(check.shutil, "which", lambda name: f"/bin/{name}")
    assert check.command_of("sanitizer", tmp_path)[0] == "/bin/compute-sanitizer"
    for path in [*check.TESTS.values(), *check.SANITIZED]:
        assert (check.ROOT / path).exists(), path
    assert "--json" in check.command_of("bench", tmp_path)
