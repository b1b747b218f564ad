"""What rendering a chat template costs: in this process, and through the process for what is not surely quick.

python bench/template.py [--rounds 500]
"""

import argparse
import statistics
import time
from collections.abc import Callable

from lullm.text.chat_template import ChatTemplate

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
FOREIGN = CHATML + "{{ '' | center(0) }}"  # `center` is refused in this process


def median_us(work: Callable[[], object], rounds: int) -> float:
    """Microseconds of a call, without its first."""
    work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    began = time.perf_counter()
    here = ChatTemplate(CHATML, {})
    print(f"compile: {(time.perf_counter() - began) * 1e3:.1f} ms")
    there = ChatTemplate(FOREIGN, {})
    began = time.perf_counter()
    there.render([{"role": "user", "content": "Hello!"}])
    print(f"first rendering in the other process: {(time.perf_counter() - began) * 1e3:.0f} ms")
    for num_messages in (1, 20, 500):
        messages = [{"role": "user", "content": "Hello there, how are you? " * 4}] * num_messages
        for name, template in (("here", here), ("other process", there)):
            us = median_us(lambda template=template, messages=messages: template.render(messages), rounds)
            print(f"{num_messages:>4} messages, {name:<14}{us:>10.1f} us")
    there.close()


if __name__ == "__main__":
    main()
