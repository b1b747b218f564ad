"""Facts out of texts, as objects of a JSON schema: whatever the model says, each output that ends parses."""

import json
import sys

from lullm import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["person", "animal", "thing"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}
TEXTS = ["Tom is a dog. He is three years old.", "Anna, who is 42, sings."]

with LLM(sys.argv[1] if len(sys.argv) > 1 else "demo") as llm:
    params = SamplingParams(temperature=0, max_tokens=80, structured_outputs=StructuredOutputsParams(json=SCHEMA))
    prompts = [f"{text}\nAs JSON:" for text in TEXTS]
    for text, output in zip(TEXTS, llm.generate(prompts, params, use_tqdm=False), strict=True):
        completion = output.outputs[0]
        if completion.finish_reason == "stop":
            print(text, "->", json.loads(completion.text))
        else:
            print(text, "-> too long:", completion.text)
