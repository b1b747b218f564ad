"""A batch that survives its process: it stops in the middle, and another process goes on with the next tokens."""

import subprocess
import sys
import tempfile
from pathlib import Path

from lullm import LLM, SamplingParams

PROMPTS = ["Once upon a time", "17 + 25 =", "The capital of France is", "Count: 1, 2, 3,"]
PARAMS = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)


def begin(model: str, folder: str) -> None:
    """The first process: 40 steps. Beside a `generate` in another thread, `hibernate` stops that after its step."""
    llm = LLM(model)
    for number, prompt in enumerate(PROMPTS):
        llm.llm_engine.add_request(str(number), prompt, PARAMS)
    for _ in range(40):
        llm.llm_engine.step()
    report = llm.hibernate(folder)
    print(
        f"{report.num_requests} requests are on disk: {report.written_bytes / 2**20:.1f} MiB in {report.seconds:.2f} s"
    )


def go_on(model: str, folder: str) -> None:
    """The second one, maybe after a restart of the machine."""
    llm = LLM(model)
    report = llm.resume(folder)
    print(f"{len(report.request_ids)} came back with {report.num_blocks} KV blocks in {report.seconds:.2f} s")
    outputs = llm.wait_for_completion(use_tqdm=False)
    llm.shutdown()
    for output in outputs:
        print(f"{output.prompt!r}: {len(output.outputs[0].token_ids)} tokens, {output.outputs[0].text[:40]!r}...")


if __name__ == "__main__":
    if len(sys.argv) > 3:
        {"begin": begin, "go_on": go_on}[sys.argv[3]](sys.argv[1], sys.argv[2])
    else:
        model = sys.argv[1] if len(sys.argv) > 1 else "demo"
        with tempfile.TemporaryDirectory() as parent:
            for part in ("begin", "go_on"):
                folder = str(Path(parent, "conversations"))
                subprocess.run([sys.executable, __file__, model, folder, part], check=True)
