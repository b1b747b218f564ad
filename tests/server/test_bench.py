"""`lullm bench serve` against the server: both endpoints, files, and refusals."""

import json

import pytest

from lullm.cli.main import main


@pytest.fixture(scope="module")
def server(start_for_module, scripted):
    return start_for_module(scripted(), api_keys=("secret",))


def run(server, *flags: str) -> int:
    return main(["bench", "serve", "--url", server.url, "--api-key", "secret", "--num-requests", "6", *flags])


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_run(server, endpoint, tmp_path, capsys):
    files = "--json", str(tmp_path / "run.json"), "--png", str(tmp_path / "run.png")
    flags = "--request-rate", "200", "--concurrency", "2", "--input-len", "20", "--output-len", "5"
    assert run(server, "--endpoint", endpoint, *flags, "--goodput", "ttft:9000", "tpot:9000", *files) == 0
    out = capsys.readouterr().out
    assert "6 requests in" in out and ", 0 failed" in out and "goodput" in out and "(100%;" in out
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["completed"] == 6 and found["output_tokens"] == 30 and found["prompt_tokens"] >= 6 * 20
    assert found["options"]["model"] == "scripted" and found["options"]["request_rate"] == 200
    assert "secret" not in (tmp_path / "run.json").read_text()
    assert found["ttft_ms"]["p99"] >= found["ttft_ms"]["p50"] > 0
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    [*_, (_, params, _)] = server.engine.seen
    assert params.max_tokens == 5 and params.ignore_eos and params.temperature == 0


def test_prompts_of_a_file(server, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("first\n\nsecond\n")
    before = server.engine.num_steps
    assert run(server, "--prompts", str(tmp_path / "prompts.txt"), "--output-len", "2", "--warmup", "0") == 0
    assert server.engine.num_steps - before == 12 and "tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-requests", "0"], "--num-requests must be at least 1"),
        (["--concurrency", "0"], "--concurrency must be at least 1"),
        (["--request-rate", "nan"], "--request-rate must be above 0"),
        (["--shared-len", "200"], "--shared-len must be between"),
        (["--goodput", "itl:5"], "--goodput"),
        (["--json", "/nowhere/x.json"], "does not exist"),
        (["--prompts", "/nowhere/x"], "nowhere"),
        (["--model", "other"], "does not answer as it should: 404"),
        (["--api-key", "wrong"], "401"),
    ],
)
def test_refusals(server, flags, message, capsys):
    assert run(server, *flags) == 2
    assert message in capsys.readouterr().err
