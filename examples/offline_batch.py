"""Many prompts in one call, each with parameters of its own. They run in one batch, whatever their lengths."""

import sys

from lullm import LLM, SamplingParams

with LLM(sys.argv[1] if len(sys.argv) > 1 else "demo") as llm:
    prompts = ["Once upon a time", "17 + 25 =", "The capital of France is"]
    params = [
        SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=40),
        SamplingParams(temperature=0, max_tokens=5),
        SamplingParams(temperature=0, n=1, max_tokens=8, logprobs=2),
    ]
    for output in llm.generate(prompts, params):
        completion = output.outputs[0]
        print(f"{output.prompt!r} -> {completion.text!r} ({completion.finish_reason})")

    # Two continuations of one prompt share the KV blocks of its tokens.
    [output] = llm.generate("Once upon a time", SamplingParams(n=2, temperature=1, seed=7, max_tokens=20))
    for completion in output.outputs:
        print(f"{completion.index}: {completion.text!r}")
