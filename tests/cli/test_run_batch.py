"""`lullm run-batch`: a file in, a file out, the demo model between."""

import json

from lullm.cli.main import USER_ERROR, main
from lullm.server.batch import batch_file

TURN = {"role": "user", "content": "Hello"}


def line(custom_id, **body):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def test_a_file_is_answered(tmp_path, capsys):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [line(str(n), model="any", messages=[TURN], max_tokens=4, temperature=0) for n in range(6)]
    source.write_text("\n".join([*lines, line("bad", messages=[])]))
    assert main(["run-batch", "-i", str(source), "-o", str(target), "--max-model-len", "256"]) == 1
    found = [json.loads(row) for row in target.read_text().splitlines()]
    assert [answer["custom_id"] for answer in found] == [*map(str, range(6)), "bad"]
    texts = {answer["response"]["body"]["choices"][0]["message"]["content"] for answer in found[:-1]}
    assert len(texts) == 1 and found[-1]["response"]["status_code"] == 400
    assert found[-1]["error"]["param"] == "messages"
    assert "7 requests answered, 1 of them with an error" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["run-batch", "-i", str(tmp_path / "no"), "-o", str(tmp_path / "out")]) == USER_ERROR
    assert "cannot be opened" in capsys.readouterr().err
    assert main(["run-batch", "-i", str(tmp_path / "no")]) == USER_ERROR
    assert "--output-file" in capsys.readouterr().err


def test_a_byte_order_mark_is_not_read(tmp_path):
    """As PowerShell writes it: the first request was refused as no JSON."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f"{line('1', messages=[TURN], max_tokens=1)}\r\n\r\n", "utf-8-sig")
    assert main(["run-batch", "-i", str(source), "-o", str(target), "--max-model-len", "256"]) == 0
    assert json.loads(target.read_text())["custom_id"] == "1"


def test_a_full_disk_is_named(tmp_path, capsys):
    source = tmp_path / "in.jsonl"
    source.write_text(line("1", messages=[TURN], max_tokens=1))
    assert main(["run-batch", "-i", str(source), "-o", "/dev/full", "--max-model-len", "256"]) == USER_ERROR
    assert "cannot write to /dev/full: No space left on device" in capsys.readouterr().err


def test_answers_are_written_as_they_come(tmp_path, monkeypatch):
    """A run that was killed had lost those that waited in a buffer of 8 KiB."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("")
    seen = []

    async def answers(app, lines):
        for _ in range(2):
            yield {"error": None}
            seen.append(target.read_text())

    monkeypatch.setattr(batch_file, "answers", answers)
    assert main(["run-batch", "-i", str(source), "-o", str(target), "--max-model-len", "256"]) == 0
    assert seen == ['{"error": null}\n', '{"error": null}\n' * 2]


def test_the_requests_are_not_written_over(tmp_path, capsys):
    """The file was emptied, and nothing answered."""
    source = tmp_path / "in.jsonl"
    source.write_text(text := line("1", messages=[TURN]))
    (tmp_path / "link").symlink_to(source)
    for target in (source, tmp_path / "link"):
        assert main(["run-batch", "-i", str(source), "-o", str(target)]) == USER_ERROR
        assert "would write over" in capsys.readouterr().err
        assert source.read_text() == text
