"""What HTTP costs: the same prompts through `LLM.generate` and as streams of one server, in turn.

    python bench/serving.py                            the demo model, 32 streams
    python bench/serving.py --shape qwen3-0.6b         a real model's shape with dummy weights
    python bench/serving.py --output-len 1 --streams 8 the time to the first token, beside the offline one
    python bench/serving.py --spread 0.6               offline, too, with requests that come each 0.6 ms

It also says what a thousand tokens cost in processor time: each server's process (with `--engine-process` HTTP alone,
else with the engine's work), and this client, which shares the cores. The times to the first token are means over the
streams, from the sending of the first request.

Both sides run in processes of their own with the same options; only one of them works at a time. The client, in this
process, speaks HTTP on plain sockets and looks for the end of each stream only, because it shares the cores.
"""

import argparse
import contextlib
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shape import add_model_flags, model_options
from startup import environment


@dataclass
class Measured:
    """The figures of all rounds, by way: 'offline', 'spread', and the kinds of servers.

    `rates`: tokens per second. `firsts`: seconds to the first token. `cpu_s`: processor seconds of each server and of
    the client.
    """

    rates: dict[str, list[float]]
    firsts: dict[str, list[float]]
    cpu_s: dict[str, float]


@dataclass
class Server:
    port: int
    pid: int


def main() -> None:
    args = parsed()
    if args.offline:
        serve_offline(json.loads(args.offline))
        return
    with ExitStack() as stack:
        options = engine_options(args, stack)
        offline = stack.enter_context(
            process([__file__, "--offline", json.dumps(options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        measured = measure(args, offline, start_servers(args, options, stack))
    report(args, measured)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_flags(parser)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stream-pause", type=float, default=0.02)
    parser.add_argument("--threads", type=int, help="of the engines (default: all cores)")
    parser.add_argument(
        "--engine-process", action="store_true", help="a second server, whose engine has its own process"
    )
    parser.add_argument("--spread", type=float, default=0.0, help="ms between arrivals of a further offline run")
    parser.add_argument("--offline", help=argparse.SUPPRESS)
    return parser.parse_args()


def engine_options(args: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    """The options of both sides' engines. The stack removes the folder of a shape."""
    # As few blocks as do: fresh ones would have to get their memory from the system in every round.
    num_blocks = args.streams * (-(-(args.input_len + args.output_len) // 16) + 2)
    options = {"enable_prefix_caching": False, "num_gpu_blocks_override": num_blocks}
    if args.threads:
        options["threads"] = args.threads
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    length = args.input_len + args.output_len
    return options | model_options(folder, args.shape, args.model, max_model_len=length)


def start_servers(args: argparse.Namespace, options: dict[str, Any], stack: ExitStack) -> dict[str, Server]:
    """The servers by where their engine runs: 'thread' and, if asked for, 'process'. The stack ends them."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not False]
    flags += ["--no-enable-prefix-caching", "--port=0", f"--stream-pause={args.stream_pause}"]
    kinds = (
        {"thread": ["--no-engine-process"], "process": ["--engine-process"]} if args.engine_process else {"thread": []}
    )
    servers = {}
    for kind, own_flags in kinds.items():
        command = ["-m", "lullm.cli.main", "serve", *flags, *own_flags]
        server = stack.enter_context(process(command, stdout=subprocess.PIPE))
        assert server.stdout is not None
        servers[kind] = Server(int(server.stdout.readline().rpartition(":")[2]), server.pid)
    return servers


def measure(args: argparse.Namespace, offline: "subprocess.Popen[str]", servers: dict[str, Server]) -> Measured:
    """Run each way once a round, in turn."""
    prompts = [[10 + (7 * stream + 3 * n) % 1900 for n in range(args.input_len)] for stream in range(args.streams)]
    order = {"prompts": prompts, "max_tokens": args.output_len, "gap_s": 0.0}
    ways = ("offline", *["spread"] * bool(args.spread), *servers)
    measured = Measured({way: [] for way in ways}, {way: [] for way in ways}, {})
    cpu_s = measured.cpu_s
    for number in range(args.rounds + 1):  # the first warms up
        if number == 1:
            cpu_s |= {kind: -processor_s(server.pid) for kind, server in servers.items()}
            cpu_s["client"] = -time.process_time()
        took = {"offline": ask_offline(offline, order)}
        if args.spread:
            took["spread"] = ask_offline(offline, order | {"gap_s": args.spread / 1e3})
        took |= {kind: ask_server(server.port, prompts, args.output_len) for kind, server in servers.items()}
        for way in ways if number else ():
            seconds, first = took[way]
            measured.rates[way].append(args.streams * args.output_len / seconds)
            measured.firsts[way].append(first)
    for kind, server in servers.items():
        cpu_s[kind] += processor_s(server.pid)
    cpu_s["client"] = (cpu_s["client"] + time.process_time()) / len(servers)
    return measured


def report(args: argparse.Namespace, measured: Measured) -> None:
    """Print the figures, and the ratio of each way to the offline one within the same round."""
    for way, rates in measured.rates.items():
        first_ms = statistics.median(measured.firsts[way]) * 1e3
        print(f"{way:8} {statistics.median(rates):8.1f} tok/s  (runs {min(rates):.1f}-{max(rates):.1f})", end="  ")
        print(f"first token after {first_ms:.1f} ms")
    thousands = args.streams * args.output_len * args.rounds / 1e3
    per_thousand = (f"{name} {each / thousands:.3f}" for name, each in measured.cpu_s.items())
    print("processor seconds per 1000 tokens:", *per_thousand)
    alone = measured.rates["offline"]
    for way in list(measured.rates)[1:]:
        ratios = [over / offline for offline, over in zip(alone, measured.rates[way], strict=True)]
        print(f"{way:8} / offline {statistics.median(ratios):.3f}  (runs {min(ratios):.3f}-{max(ratios):.3f})")


@contextlib.contextmanager
def process(arguments: list[str], **pipes: int) -> "Iterator[subprocess.Popen[str]]":
    """A Python of this checkout, until the block ends."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, env=environment(), text=True, stderr=subprocess.DEVNULL, **pipes) as found:
        try:
            yield found
        finally:
            found.terminate()


def serve_offline(options: dict[str, Any]) -> None:
    """Answer each line of orders on stdin with the seconds that `LLM.generate` takes, and those to a first token."""
    from lullm import LLM, SamplingParams

    llm = LLM(**options)
    for line in sys.stdin:
        order = json.loads(line)
        params = SamplingParams(temperature=0.0, max_tokens=order["max_tokens"], ignore_eos=True)
        started = time.monotonic()
        if order["gap_s"]:
            outputs = arriving(llm, order["prompts"], params, order["gap_s"])
        else:
            outputs = llm.generate(order["prompts"], params, use_tqdm=False)
        ended = time.monotonic()
        first = statistics.mean(output.metrics.first_token_time - started for output in outputs)
        print(ended - started, first, flush=True)
        assert all(len(output.outputs[0].token_ids) == order["max_tokens"] for output in outputs)


def arriving(llm: Any, prompts: list[list[int]], params: Any, gap_s: float) -> list[Any]:
    """The outputs of prompts that come one after the other, as they do over HTTP: the limit of any server."""
    engine, outputs, num_sent, started = llm.llm_engine, [], 0, time.monotonic()
    while len(outputs) < len(prompts):
        while num_sent < len(prompts) and time.monotonic() - started >= num_sent * gap_s:
            engine.add_request(f"spread-{num_sent}", prompts[num_sent], params)
            num_sent += 1
        if engine.has_unfinished_requests():
            outputs += [output for output in engine.step() if output.finished]
    return outputs


def processor_s(pid: int) -> float:
    """What a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask_offline(offline: "subprocess.Popen[str]", order: dict[str, Any]) -> tuple[float, float]:
    assert offline.stdin is not None and offline.stdout is not None
    print(json.dumps(order), file=offline.stdin, flush=True)
    seconds, first = map(float, offline.stdout.readline().split())
    return seconds, first


def ask_server(port: int, prompts: list[list[int]], max_tokens: int) -> tuple[float, float]:
    """Seconds from the first request to the end of the last stream, and to the first event of each, on average."""
    fields = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    bodies = [json.dumps(fields | {"prompt": prompt}).encode() for prompt in prompts]
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in bodies]
        firsts: dict[Any, float] = {}
        started = time.monotonic()
        for connection, body in zip(sockets, bodies, strict=True):
            head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            selector.register(connection, selectors.EVENT_READ, bytearray())
        num_open = len(sockets)
        while num_open:
            for key, _ in selector.select():
                part = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                key.data[:] = key.data[-64:] + part
                firsts.setdefault(key.fileobj, time.monotonic() - started)
                if b"[DONE]" in key.data:
                    selector.unregister(key.fileobj)
                    num_open -= 1
                elif not part or b'"error"' in key.data:
                    sys.exit(f"a stream failed: {bytes(key.data)!r}")
    return time.monotonic() - started, statistics.mean(firsts.values())


if __name__ == "__main__":
    main()
