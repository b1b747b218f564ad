"""`lullm memory` with a tiny random model."""

from kit.png import read_png

from lullm.cli.main import main

FLAGS = ("--dtype", "float32", "--block-size", "8", "--max-model-len", "256", "--num-gpu-blocks-override", "32")


def test_memory(qwen3_folder, tmp_path, capsys):
    picture = tmp_path / "map.png"
    assert main(["memory", "--model", str(qwen3_folder), *FLAGS, "--png", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert "a chat-1, b long" in out and " swap (mode) " in out and str(picture) in err
    rows = [line for line in out.splitlines() if line.count("|") == 4][1:]
    assert len(rows) > 10 and any("#" in row for row in rows), "the chats share their first blocks"
    assert len(read_png(picture.read_bytes())) > 100


def test_memory_is_refused_before_the_model_is_loaded(tmp_path, capsys):
    assert main(["memory", "--png", str(tmp_path / "missing" / "map.png")]) == 2
    assert "does not exist" in capsys.readouterr().err
