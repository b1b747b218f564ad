"""`lullm run --image` and `--video`: what a model says of pictures and videos on disk."""

import pytest
from kit.vision.checkpoint import picture, write_llava, write_qwen_vl

from lullm import LLM, SamplingParams
from lullm.cli.main import main

OPTIONS = {"dtype": "float32", "max_model_len": 256, "block_size": 8, "num_gpu_blocks_override": 64}
FLAGS = ["--dtype", "float32", "--max-model-len", "256", "--block-size", "8", "--num-gpu-blocks-override", "64",
         "--temp", "0", "--max-tokens", "8"]  # fmt: skip
QUESTION = "what fox?"


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return str(write_llava(tmp_path_factory.mktemp("llava")).folder)


@pytest.fixture
def files(tmp_path):
    names = [str(tmp_path / name) for name in ("a.png", "b.jpeg")]
    for number, name in enumerate(names):
        picture(61, 40, seed=number).save(name)
    return names


def test_pictures_before_the_text(llava, files, capsys):
    params = SamplingParams(temperature=0.0, max_tokens=8)
    with LLM(llava, allowed_local_media_path="/", **OPTIONS) as llm:
        parts = [{"type": "image_url", "image_url": {"url": f"file://{file}"}} for file in files]
        message = {"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}
        expected = llm.chat([message], params, use_tqdm=False)[0].outputs[0].text
        without = llm.chat([{"role": "user", "content": QUESTION}], params, use_tqdm=False)[0].outputs[0].text
    assert expected != without
    images = [word for file in files for word in ("--image", file)]
    assert main(["run", "--model", llava, *FLAGS, QUESTION, *images]) == 0
    assert capsys.readouterr().out.strip() == expected.strip()


def test_pictures_before_videos_before_the_text(tmp_path, files, capsys):
    (tmp_path / "model").mkdir()
    folder, params = str(write_qwen_vl(tmp_path / "model").folder), SamplingParams(temperature=0.0, max_tokens=8)
    frames = [picture(60, 40, seed=number) for number in range(4)]
    film = str(tmp_path / "film.gif")
    frames[0].save(film, save_all=True, append_images=frames[1:], duration=500)
    with LLM(folder, allowed_local_media_path="/", **OPTIONS) as llm:
        urls = [("image_url", files[0]), ("video_url", film)]
        parts = [{"type": kind, kind: {"url": f"file://{file}"}} for kind, file in urls]
        message = {"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}
        expected = llm.chat([message], params, use_tqdm=False)[0].outputs[0].text
    assert main(["run", "--model", folder, *FLAGS, QUESTION, "--video", film, "--image", files[0]]) == 0
    assert capsys.readouterr().out.strip() == expected.strip()
    assert main(["run", "--model", folder, *FLAGS, QUESTION, "--video", "none.mp4"]) == 2
    assert "--video: cannot read none.mp4" in capsys.readouterr().err


def test_what_is_no_picture(llava, qwen3_folder, files, tmp_path, capsys):
    run = ["run", "--model", llava, *FLAGS]
    assert main([*run, QUESTION, "--image", str(tmp_path / "none.png")]) == 2
    assert "--image: cannot read" in capsys.readouterr().err
    (tmp_path / "text.png").write_text("hello")
    assert main([*run, QUESTION, "--image", str(tmp_path / "text.png")]) == 2
    assert "a picture is not PNG" in capsys.readouterr().err
    assert main([*run, "--raw", QUESTION, "--image", files[0]]) == 2
    assert "--image: for conversations" in capsys.readouterr().err
    for flag in ("--image", "--video"):
        assert main(["run", "--model", str(qwen3_folder), *FLAGS, QUESTION, flag, files[0]]) == 2
        assert "takes text only" in capsys.readouterr().err
