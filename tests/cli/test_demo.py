"""The bundled model on the command line, with no flags at all."""

from lullm import LLM, SamplingParams
from lullm.cli.main import main


def test_run_without_flags(capsys):
    assert main(["run", "--temperature", "0", "--max-tokens", "20", "What is the capital of France?"]) == 0
    out, err = capsys.readouterr()
    message = {"role": "user", "content": "What is the capital of France?"}
    with LLM() as llm:
        text = llm.chat([message], SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)[0].outputs[0].text
    assert text and out == text.rstrip("\n") + "\n" and err == ""


def test_run_raw(capsys):
    assert main(["run", "--raw", "--seed", "1", "--max-tokens", "20", "Once upon"]) == 0
    assert len(capsys.readouterr().out.split()) > 3
