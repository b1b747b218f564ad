"""`lullm run-batch`: a file in, a file out, the demo model between."""

import json

from lullm.cli.main import USER_ERROR, main

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


def test_the_requests_are_not_written_over(tmp_path, capsys):
    """The file was emptied, and nothing answered."""
    source = tmp_path / "in.jsonl"
    source.write_text(text := line("1", messages=[TURN]))
    (tmp_path / "link").symlink_to(source)
    for target in (source, tmp_path / "link"):
        assert main(["run-batch", "-i", str(source), "-o", str(target)]) == USER_ERROR
        assert "would write over" in capsys.readouterr().err
        assert source.read_text() == text
