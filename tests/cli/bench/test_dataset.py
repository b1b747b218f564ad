"""The prompts of `lullm bench`, and what is refused before anything is measured."""

import argparse
import json

import pytest

from lullm.cli.bench.dataset import add_dataset_flags, check_dataset, random_jobs, read_jobs
from lullm.cli.main import main
from lullm.errors import ConfigError


def jobs_of(*flags: str):
    parser = argparse.ArgumentParser()
    add_dataset_flags(parser)
    args = parser.parse_args(flags)
    check_dataset(args)
    return read_jobs(args, 50, 7, lambda text: len(text.split()))


def test_random_prompts():
    jobs = jobs_of("--num-prompts", "3", "--input-len", "9", "--output-len", "4", "--shared-len", "5")
    assert [len(job.prompt) for job in jobs] == [9, 9, 9] and {job.output_len for job in jobs} == {4}
    assert len({tuple(job.prompt[:5]) for job in jobs}) == 1 and len({tuple(job.prompt) for job in jobs}) == 3
    assert all(0 <= token < 50 for job in jobs for token in job.prompt)
    assert jobs == random_jobs(3, 50, 9, 4, 7, 5)


def test_lengths_that_vary():
    jobs = random_jobs(400, 50, 100, 10, seed=1, spread=0.5)
    lengths = {len(job.prompt) for job in jobs}
    assert min(lengths) >= 50 and max(lengths) <= 150 and len(lengths) > 50
    assert {job.output_len for job in jobs} == set(range(5, 16))


def test_the_dialogues_of_a_file(tmp_path):
    file = tmp_path / "dialogues.json"
    turns = [{"from": "human", "value": "How are you?"}, {"from": "gpt", "value": "very well indeed"}]
    file.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    flags = "--dataset-name", "sharegpt", "--dataset-path", str(file), "--num-prompts", "3"
    assert [(job.prompt, job.output_len) for job in jobs_of(*flags)] == [
        ("How are you?", 3),
        ("How are you?", 64),
        ("How are you?", 3),
    ]
    assert {job.output_len for job in jobs_of(*flags, "--output-len", "5")} == {5}


def test_the_lines_of_a_file(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n\n{"prompt": "b"}\n')
    jobs = jobs_of("--dataset-name", "custom", "--dataset-path", str(file), "--num-prompts", "3")
    assert [job.prompt for job in jobs] == ["a", "b", "a"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', "\xff"])
def test_files_that_are_none(text, tmp_path):
    (tmp_path / "file").write_bytes(text.encode("latin-1"))
    for form in ("sharegpt", "custom"):
        with pytest.raises(ConfigError, match="--dataset-path"):
            jobs_of("--dataset-name", form, "--dataset-path", str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["throughput", "--dataset-name", "custom"], "needs --dataset-path"),
        (["throughput", "--dataset-path", "x"], "needs --dataset-name"),
        (["throughput", "--dataset-name", "custom", "--dataset-path", "x", "--input-len", "3"], "--input-len is of"),
        (["throughput", "--random-range-ratio", "1"], "--random-range-ratio must be"),
        (["throughput", "--shared-len", "200"], "--shared-len must be between"),
        (["throughput", "--output-len", "0"], "--output-len must be at least 1"),
        (["throughput", "--json", "/nowhere/x"], "does not exist"),
        (["throughput", "--dataset-name", "custom", "--dataset-path", "/nowhere/x"], "nowhere"),
        (["latency", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["latency", "--png", "/nowhere/x"], "does not exist"),
        (["latency", "--json", "/dev"], "/dev cannot be written to"),
        (["startup", "--num-iters-warm", "0"], "nothing to measure"),
        (["startup", "--max-model-len", "0"], "--max-model-len must be"),
    ],
)
def test_refusals(argv, words, capsys):
    assert main(["bench", *argv]) == 2
    assert words in capsys.readouterr().err
