"""Measure the demo model on held-out items, through the engine: `python -m training.evaluate`.

`--engine dense` asks the training network instead (no cache, whole rows, bfloat16), as a reference to compare with.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from lullm.weights.folder import resolve_model
from training.corpus.corpus import END_OF_TEXT, TASKS, TURN_END, Item, held_out_items, user_turn
from training.dense import DenseConfig, DenseQwen3
from training.scoring import Score, score, story_is_sound, story_requests, story_words

ANSWER_TOKENS = 48
STORY_TOKENS = 220
STORY_PROMPTS = ("Tell me a story.", "Tell me a short story about a dog.", "Write a story about a brave robot")


class Answers(Protocol):
    """What the evaluation needs from an engine; both methods decode greedily."""

    def complete(self, prompts: list[str], max_tokens: int) -> list[str]:
        """Return one continuation per plain prompt."""
        ...

    def chat(self, questions: list[str], max_tokens: int) -> list[str]:
        """Return one answer per single-turn question."""
        ...


class EngineAnswers:
    """Answers through `lullm.LLM`."""

    def __init__(self, model: Path | None, quantization: str | None = None) -> None:
        from lullm import LLM, SamplingParams

        self._llm = LLM("demo" if model is None else str(model), quantization=quantization)
        self._params = SamplingParams

    def complete(self, prompts: list[str], max_tokens: int) -> list[str]:
        params = self._params(temperature=0, max_tokens=max_tokens)
        return [out.outputs[0].text for out in self._llm.generate(prompts, params, use_tqdm=False)]

    def chat(self, questions: list[str], max_tokens: int) -> list[str]:
        params = self._params(temperature=0, max_tokens=max_tokens)
        conversations = [[{"role": "user", "content": question}] for question in questions]
        return [out.outputs[0].text for out in self._llm.chat(conversations, params, use_tqdm=False)]


class DenseAnswers:
    """Answers of the training network on the stored bfloat16 weights, recomputing every row for every token."""

    def __init__(self, model: Path | None, rows: int = 64) -> None:
        folder = model or resolve_model("demo")
        config = DenseConfig.from_json(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        self._model = DenseQwen3(config).to(torch.bfloat16)
        self._model.load_state_dict(load_file(folder / "model.safetensors"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._ends = {self._tokenizer.token_to_id(END_OF_TEXT), self._tokenizer.token_to_id(TURN_END)}
        self._rows = rows

    @torch.inference_mode()
    def _continue(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Extend rows of ids; padding stands to the right, where causal attention never looks."""
        rows = [list(prompt) for prompt in prompts]
        going = list(range(len(rows)))
        for _ in range(max_tokens):
            if not going:
                break
            longest = max(len(rows[at]) for at in going)
            tokens = torch.tensor([rows[at] + [0] * (longest - len(rows[at])) for at in going])
            last = torch.tensor([len(rows[at]) - 1 for at in going])
            hidden = self._model.hidden(tokens)[torch.arange(len(going)), last]
            chosen = self._model.logits(hidden).argmax(-1).tolist()
            for at, token in zip(going, chosen, strict=True):
                rows[at].append(token)
            going = [at for at, token in zip(going, chosen, strict=True) if token not in self._ends]
        return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]

    def complete(self, prompts: list[str], max_tokens: int) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(prompts), self._rows):
            ids = [self._tokenizer.encode(each).ids for each in prompts[start : start + self._rows]]
            texts += [self._tokenizer.decode(row) for row in self._continue(ids, max_tokens)]
        return texts

    def chat(self, questions: list[str], max_tokens: int) -> list[str]:
        return self.complete([user_turn(question) for question in questions], max_tokens)


def score_tasks(answers: Answers, count: int, seed: int = 1) -> list[Score]:
    """Score up to `count` held-out items of every task as a chat, and the sums once more as plain text."""
    scores = []
    for task in TASKS:
        items = held_out_items(task, count, seed)
        scores.append(score(task, items, answers.chat([item.question for item in items], ANSWER_TOKENS)))
        if task in ("addition", "subtraction"):
            plain = [Item(task, item.key, item.answer.partition(" = ")[0] + " =", item.answer) for item in items]
            written = answers.complete([item.question for item in plain], ANSWER_TOKENS)
            first_lines = [text.partition("\n")[0] for text in written]
            scores.append(score(f"{task}, plain text", plain, first_lines))
    return scores


def score_stories(answers: Answers, count: int, seed: int = 1) -> Score:
    """Score the form of `count` requested stories: ended, about the right hero, no unknown word."""
    requests, known = story_requests(count, seed), story_words()
    texts = answers.chat([request.question for request in requests], STORY_TOKENS)
    wrong = [
        (request.question, text)
        for request, text in zip(requests, texts, strict=True)
        if not story_is_sound(request, text, known)
    ]
    return Score("stories, form", len(requests), len(requests) - len(wrong), tuple(wrong[:3]))


def report(scores: list[Score], stories: list[tuple[str, str]], seconds: float) -> str:
    """Return the figures as text: a table, the first mistakes of each task, and the stories."""
    lines = [f"{'task':<26}{'items':>7}{'right':>7}{'accuracy':>11}"]
    lines += [f"{each.task:<26}{each.items:>7}{each.right:>7}{each.accuracy:>10.1%}" for each in scores]
    lines.append(f"\n{seconds:.1f} s in all")
    mistakes = [(each.task, *pair) for each in scores for pair in each.wrong]
    if mistakes:
        lines.append("\nfirst mistakes")
        lines += [f"  {task}: {question!r} -> {answer!r}" for task, question, answer in mistakes]
    for prompt, story in stories:
        lines.append(f"\n> {prompt}\n{story}")
    return "\n".join(lines)


def as_json(scores: list[Score], stories: list[tuple[str, str]], seconds: float) -> dict[str, Any]:
    """Return the same figures as a JSON object."""
    return {
        "tasks": {
            each.task: {"items": each.items, "right": each.right, "accuracy": round(each.accuracy, 4)}
            for each in scores
        },
        "stories": [{"prompt": prompt, "story": story} for prompt, story in stories],
        "seconds": round(seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the evaluation from the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=None, help="checkpoint folder (default: the bundled model)")
    parser.add_argument("--engine", choices=("lullm", "dense"), default="lullm")
    parser.add_argument("--quantization", choices=("int8", "int4"), help="bits of the matrices (default: all)")
    parser.add_argument("--items", type=int, default=300, help="held-out items per task, at most")
    parser.add_argument("--stories", type=int, default=40, help="stories whose form is scored")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.quantization and options.engine != "lullm":
        parser.error("--quantization needs --engine lullm")
    started = time.monotonic()
    if options.engine == "lullm":
        answers: Answers = EngineAnswers(options.model, options.quantization)
    else:
        answers = DenseAnswers(options.model)
    scores = [*score_tasks(answers, options.items), score_stories(answers, options.stories)]
    stories = list(zip(STORY_PROMPTS, answers.chat(list(STORY_PROMPTS), STORY_TOKENS), strict=True))
    seconds = time.monotonic() - started
    if options.json:
        print(json.dumps(as_json(scores, stories, seconds), indent=2, ensure_ascii=False))
    else:
        print(report(scores, stories, seconds))


if __name__ == "__main__":
    main()
