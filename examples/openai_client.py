"""A server in a process of its own, and the official `openai` client (`pip install openai`)."""

import subprocess
import sys

from openai import OpenAI

MODEL = sys.argv[1] if len(sys.argv) > 1 else "demo"

# Port 0 lets the system choose one; the ready line names it. On a command line: `lullm serve MODEL --port 8000`.
command = [sys.executable, "-m", "lullm.cli.main", "serve", MODEL, "--port", "0", "--log-level", "warning"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        url = server.stdout.readline().split()[-1]
        with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            model = client.models.list().data[0].id
            question = [{"role": "user", "content": "What is 17 + 25?"}]
            answer = client.chat.completions.create(model=model, messages=question, temperature=0, max_tokens=30)
            print(answer.choices[0].message.content, answer.usage.total_tokens, "tokens")

            story = [{"role": "user", "content": "Tell me a short story about a dog."}]
            for chunk in client.chat.completions.create(model=model, messages=story, max_tokens=60, stream=True):
                print(chunk.choices[0].delta.content or "", end="", flush=True)
            print()
    finally:
        server.terminate()
