"""Two models take turns in the memory of one: the one that is not asked sleeps, and wakes with its own weights."""

import resource
import sys

from lullm import LLM, SamplingParams

MODEL = sys.argv[1] if len(sys.argv) > 1 else "demo"
PARAMS = SamplingParams(temperature=0, max_tokens=12)


def ask(llm: LLM, prompt: str) -> str:
    """Wake the model, if it sleeps; answer; and let it sleep again."""
    llm.wake_up()
    text = llm.generate(prompt, PARAMS, use_tqdm=False)[0].outputs[0].text
    report = llm.sleep(level=1)
    print(f"{text!r:60} then {report.freed_bytes / 2**20:.0f} MiB were released in {report.seconds:.2f} s")
    return text


# Options are each model's own: here the second one is the first with 8-bit weights.
first = LLM(MODEL, enable_sleep_mode=True)
first.sleep(level=1)
second = LLM(MODEL, enable_sleep_mode=True, quantization="int8")
second.sleep(level=1)

answers = [(ask(first, "Once upon a time"), ask(second, "17 + 25 =")) for _ in range(2)]
assert answers[0] == answers[1], "what comes back after a sleep is what was there before"
print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB were resident")
