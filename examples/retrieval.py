"""Embeddings, and an answer from the nearest document, by one model for both.

The demo model was never trained for embeddings, and finds by chance; `retrieval.py path/to/Qwen3-Embedding` knows how.
"""

import sys

from lullm import LLM, SamplingParams

DOCUMENTS = [
    "The capital of France is Paris.",
    "Once upon a time there was a dog who liked to run.",
    "17 + 25 = 42.",
]
QUESTION = "The capital of France"


def similarity(left: list[float], right: list[float]) -> float:
    """The cosine: embeddings are normalized."""
    return sum(a * b for a, b in zip(left, right, strict=True))


with LLM(sys.argv[1] if len(sys.argv) > 1 else "demo", convert="embed") as llm:
    vectors = [output.outputs.embedding for output in llm.embed([*DOCUMENTS, QUESTION], use_tqdm=False)]
    scores = [similarity(vector, vectors[-1]) for vector in vectors[:-1]]
    for score, document in sorted(zip(scores, DOCUMENTS, strict=True), reverse=True):
        print(f"{score:.3f}  {document}")
    nearest = DOCUMENTS[scores.index(max(scores))]

    prompt = f"{nearest}\n{QUESTION} is"
    [output] = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    print(prompt + output.outputs[0].text)
