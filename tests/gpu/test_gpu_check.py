"""The script that checks a GPU, without one: selection, rows that fail or hang, the summary."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu_check.py"
FACTS = {"gpu": "X", "torch": "2", "triton": "3", "commit": "abc"}


@pytest.fixture
def check(script):
    return script("gpu_check")


def end_of(check, monkeypatch, *arguments):
    """The exit status of the script with these arguments."""
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", *arguments])
    with pytest.raises(SystemExit) as end:
        check.main()
    return end.value.code


def test_selection(check, capsys):
    assert check.parse([]).only == check.FIRST and check.parse(["--rest"]).only == check.REST
    assert [row.name for row in check.parse(["--only", "sleep,kernels"]).only] == ["kernels", "sleep"]
    assert [row.name for row in check.parse(["--only", "peer,facts"]).only] == ["facts", "peer"]
    assert check.parse(["--only", "sleep-tests"]).rest and not check.parse(["--only", "peer"]).rest
    with pytest.raises(SystemExit):
        check.parse(["--only", "kernels,nonsense"])
    assert "no row nonsense" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        check.parse(["--row", "facts"])
    assert "go together" in capsys.readouterr().err
    assert check.parse(["--out", "here"]).out == Path("here").resolve()


def test_the_first_command_takes_less_than_ten_minutes(check):
    assert sum(row.limit_s for row in check.FIRST) <= 560
    assert [row.name for row in check.FIRST[:3]] == ["facts", "contact", "kernels"], "what the others stand on"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu(tmp_path):
    command = [sys.executable, str(SCRIPT), "--only", "kernels", "--out", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and "; nothing was checked" in result.stderr
    assert "torch sees no GPU" in result.stderr or "without CUDA" in result.stderr, "it says why"
    assert not (tmp_path / "out").exists()


def test_a_python_that_lacks_modules_is_told_what_to_carry(check, tmp_path):
    assert check.missing(check.NEEDED) == [] and check.missing({"json": "json", "no_such": "no-such"}) == ["no-such"]
    bare = [sys.executable, "-E", "-s", "-S", str(SCRIPT), "--out", str(tmp_path / "out")]  # without site-packages
    result = subprocess.run(bare, capture_output=True, text=True)
    assert result.returncode == 2 and "msgspec, xxhash" in result.stderr
    assert "pip download" in result.stderr and "--find-links" not in result.stderr and "PYTHONPATH" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("is_installed", [False, True])
def test_git_is_not_needed(check, monkeypatch, is_installed):
    monkeypatch.delenv("LULLM_COMMIT", raising=False)
    monkeypatch.setattr(check.shutil, "which", lambda name: "/bin/git" if is_installed else None)
    said = subprocess.CompletedProcess([], 128, "", "fatal: not a git repository")
    monkeypatch.setattr(check.subprocess, "run", lambda *args, **options: said)
    assert check.commit() == "unknown"
    monkeypatch.setenv("LULLM_COMMIT", "abc")
    assert check.commit() == "abc"


def test_rows_find_what_was_brought_along(check, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "brought")
    row, log = check.FIRST[0], tmp_path / "log"
    environment = check.environment_of(row, tmp_path / "lines")
    code = check.run([sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])"], 30, log, environment)
    assert code == 0
    assert log.read_text().strip() == ":".join([*(f"{check.ROOT}/{n}" for n in ("src", "bench", "tests")), "brought"])


LINES = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); from pathlib import Path;" \
    "from gpu_parts.line import Lines; lines = Lines(Path(sys.argv[1]), sys.argv[2]);"  # fmt: skip
ROWS = {
    "facts": "lines.plan(['a']); lines.passed('a', cores=2)",
    "contact": "lines.plan(['b', 'c', 'd']); lines.failed('b', 'AssertionError: 1, not 2', ms=3.0); lines.passed('c');"
    "print('the last word'); raise SystemExit(3)",
    "kernels": "import subprocess, time; lines.plan(['e', 'f']); lines.passed('e', error=1e-3); print('hangs');"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "Path(sys.argv[1] + '.pid').write_text(str(child.pid)); time.sleep(60)",
    "products": "lines.passed('ceilings', copy_gb_per_s=4000.0, to_host_gb_per_s=50.0)",
    "sleep": "lines.passed('sleep-8b', level1_sleep_gb_per_s=45.0, level1_released=0.95);lines.skipped('x', 'no room')",
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


def test_all_rows_in_order(check, tmp_path, monkeypatch, capsys):
    """One fails, one hangs with a process of its own; what they have found stays, and the others run."""
    limits = {"kernels": 12}
    rows = [check.Row(name, limits.get(name, 60), "something", "a:b") for name in ROWS]
    monkeypatch.setattr(check, "FIRST", rows)
    monkeypatch.setattr(check, "machine", lambda: FACTS)
    monkeypatch.setattr(
        check, "command_of", lambda row, lines: [sys.executable, "-c", LINES + ROWS[row.name], str(lines), row.name]
    )
    assert end_of(check, monkeypatch, "--out", str(tmp_path)) == 1
    outcomes = {o.row: o for o in check.outcomes_of(check.read_lines(tmp_path / "gpu-check.jsonl"))}
    assert {name: outcomes[name].state for name in ROWS} == {
        "facts": "passed", "contact": "failed", "kernels": "failed", "products": "passed", "sleep": "passed",
    }  # fmt: skip
    assert outcomes["contact"].failed == {"b": "AssertionError: 1, not 2"} and outcomes["contact"].missed == ["d"]
    hung = outcomes["kernels"]
    assert hung.passed == ["e"] and hung.missed == ["f"] and hung.failed == {"kernels": "not done within 12 s"}
    assert hung.seconds < 50 and (tmp_path / "kernels.log").read_text().endswith("hangs\n")
    assert is_gone(int((tmp_path / "gpu-check.jsonl.pid").read_text())), "what a row has started holds the device"
    assert outcomes["engine"].state == "not run", "a row that the summary has and nobody has begun"
    text = (tmp_path / "gpu-check.md").read_text()
    assert "gpu X, torch 2" in text and "- failed: b: AssertionError: 1, not 2" in text and "- not reached: f" in text
    assert "| sleep level 1, 8B | 45 GB/s | 50 | 0.90 | 0.80 | reached |" in text and "- skipped: x: no room" in text
    assert "| products | " in capsys.readouterr().out

    monkeypatch.setitem(ROWS, "contact", "lines.passed('b')")
    assert end_of(check, monkeypatch, "--out", str(tmp_path), "--only", "contact") == 0
    again = {o.row: o for o in check.outcomes_of(check.read_lines(tmp_path / "gpu-check.jsonl"))}
    assert again["contact"].state == "passed" and again["kernels"] == hung, "other rows are kept"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_row_ends_with_the_command(tmp_path, number):
    """Ctrl-C, or the limit of a job: a row in a group of its own does not hear of it, and would hold the device."""
    row = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    code = f"import os, sys; from pathlib import Path; sys.path.insert(0, {str(SCRIPT.parent)!r}); import gpu_check;"
    code += f"gpu_check.exit_at_signals(); command = [sys.executable, '-c', {row!r}];"
    code += "gpu_check.run(command, 50, Path(sys.argv[1]), dict(os.environ))"
    log = tmp_path / "log"
    command = subprocess.Popen([sys.executable, "-c", code, str(log)], stderr=subprocess.DEVNULL)
    while command.poll() is None and not (log.exists() and log.read_text().endswith("\n")):
        time.sleep(0.05)
    command.send_signal(number)
    assert command.wait(30) != 0
    assert is_gone(int(log.read_text()))


def test_a_row_of_which_all_was_skipped_is_not_measured(check, tmp_path, monkeypatch):
    lines = tmp_path / "lines"
    row = check.Row("peer", 60, "another's fault", "a:b")
    command = [sys.executable, "-c", LINES + "lines.skipped('mix-peer', 'no module')", str(lines), row.name]
    monkeypatch.setattr(check, "command_of", lambda row, lines: command)
    check.run_row(row, tmp_path, lines, "abc")
    [outcome] = [o for o in check.outcomes_of(check.read_lines(lines)) if o.row == "peer"]
    assert outcome.state == "not measured" and outcome.skipped == {"mix-peer": "no module"}


def test_a_tool_that_is_not_there_or_refuses_measures_nothing(check, tmp_path, monkeypatch):
    row, lines = check.ROWS["memcheck"], tmp_path / "lines"
    monkeypatch.setattr("shutil.which", lambda name: None)
    check.run_row(row, tmp_path, lines, "abc")
    [outcome] = [o for o in check.outcomes_of(check.read_lines(lines)) if o.row == "memcheck"]
    assert outcome.state == "not measured" and outcome.skipped == {"memcheck": "compute-sanitizer is not installed"}
    lines.unlink()
    refuses = [sys.executable, "-c", "print('Error: Device not supported'); raise SystemExit(1)"]
    monkeypatch.setattr(check, "command_of", lambda row, lines: refuses)
    check.run_row(row, tmp_path, lines, "abc")
    assert [o.state for o in check.outcomes_of(check.read_lines(lines)) if o.row == "memcheck"] == ["not measured"]


def test_commands(check, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    memcheck = check.command_of(check.ROWS["racecheck"], tmp_path)
    assert memcheck[:3] == ["/bin/compute-sanitizer", "--tool", "racecheck"] and "pytest" not in memcheck
    tests = check.command_of(check.ROWS["engine-tests"], tmp_path)
    assert "gpu_parts.rest.pytest_lines" in tests and tests[-1] == "tests/gpu/test_engine.py"


def test_a_line_that_was_cut_is_left_out(check, tmp_path):
    path = tmp_path / "lines"
    path.write_text('{"row": "a", "state": "begun"}\n{"row": "a", "sta')
    assert check.read_lines(path) == [{"row": "a", "state": "begun"}]


TESTS = """
import pytest
def test_one(): pass
@pytest.mark.parametrize("x", [1, 2])
def test_two(x): assert x == 1
@pytest.mark.skip(reason="no room")
def test_three(): pass
"""


def test_tests_write_their_lines_themselves(check, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    row, lines = check.ROWS["engine-tests"], tmp_path / "lines"
    command = [sys.executable, "-m", "pytest", "-p", "gpu_parts.rest.pytest_lines", "-p", "no:cacheprovider",
               "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]  # fmt: skip
    code = check.run(command, 60, tmp_path / "log", check.environment_of(row, lines))
    assert code == 1, (tmp_path / "log").read_text()
    found = {line["what"].split("::")[1]: line for line in check.read_lines(lines) if "what" in line}
    states = {name: line["state"] for name, line in found.items()}
    assert states == {"test_one": "passed", "test_two[1]": "passed", "test_two[2]": "failed", "test_three": "skipped"}
    assert "assert 2 == 1" in found["test_two[2]"]["error"] and "no room" in found["test_three"]["why"]
    [planned] = [line["names"] for line in check.read_lines(lines) if line["state"] == "planned"]
    assert len(planned) == 4


FIGURES = {
    "ceilings": {"copy_gb_per_s": 4000.0, "bf16_tflop_per_s": 800.0, "to_host_gb_per_s": 50.0},
    "decode-8b": {"graphs_gb_per_s": 3000.0},
    "shipped tiles": {"decode_gb_per_s": 1700.0, "prefill_tflop_per_s": 480.0},
    "mix": {"output_tok_per_s": 9000.0},
    "sleep-8b": {"level1_released": 0.95, "recaptured": 0.0},
}


def test_the_docs_name_every_goal_and_the_rows_that_measure_it(script):
    """docs/gpu.md has a line for each, with the number to reach, and rows that exist."""
    report, rows = script("gpu_parts.report"), script("gpu_parts.row").ROWS
    lines = [line for line in (SCRIPT.parent.parent / "docs" / "gpu.md").read_text().splitlines() if "`--only" in line]
    for goal in report.GOALS:
        [line] = [line for line in lines if line.startswith(f"| {goal.what} |")]
        least = {0.0: "none", 3.0: "3 x"}.get(goal.least, f"{100 * goal.least:.0f} %")
        assert line.split("|")[2].strip() == least
        named = {name for words in line.split("`")[1::2] for name in words.removeprefix("--only ").split(",")}
        assert named <= set(rows) and (goal.ceiling is None or goal.ceiling[0] != "ceilings" or "products" in named)


def test_the_largest_gap_stands_first(script):
    report = script("gpu_parts.report")
    lines = report.goal_lines(FIGURES)
    assert len(lines) == len(report.GOALS)
    assert lines[0] == "| paged decode kernel, 32 x 4k | 1700 GB/s | 4000 | 0.42 | 0.85 | missed |"
    assert "| decode 1 stream, 8B, graphs | 3000 GB/s | 4000 | 0.75 | 0.70 | reached |" in lines
    assert any(line.startswith("| memory released at level 1, 8B | 0.95 of what was held |  | 0.95") for line in lines)
    assert any("graphs recorded again" in line and line.endswith("reached |") for line in lines)
    assert sum(line.endswith("not measured |") for line in lines) == 4
    assert "| nano-vLLM's mix, by transformers' | 9000 tok/s | - | - | 3.00 | not measured |" in lines


def test_figures_of_a_case_that_was_cut_are_kept(script, monkeypatch, tmp_path):
    """A case prints what it knows; the limit takes the rest. Another's fault is no fault of ours."""
    bench, line = script("gpu"), script("gpu_parts.line")
    code = "import time; print('{\"tok_per_s\": 5.0}', flush=True); print('noise'); time.sleep(60)"
    popen = subprocess.Popen
    monkeypatch.setattr(bench.subprocess, "Popen", lambda _, **o: popen([sys.executable, "-c", code], **o))
    monkeypatch.setattr(bench, "CASES", {"mix": 2, "mix-peer": 2})
    lines = line.Lines(tmp_path / "lines", "goals")
    bench.run_cases(lines, ("mix", "mix-peer"))
    planned, mix, peer = line.read_lines(tmp_path / "lines")
    assert planned["names"] == ["mix", "mix-peer"]
    assert mix["state"] == "failed" and mix["figures"] == {"tok_per_s": 5.0} and "within 2 s" in mix["error"]
    assert peer["state"] == "skipped" and json.dumps(peer["why"])
