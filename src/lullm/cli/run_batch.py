"""`lullm run-batch`: answers a file of requests, in OpenAI's batch form."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from lullm.cli.flag.engine import (
    LORA_OPTIONS,
    PROMPT_ADAPTER_OPTIONS,
    SLEEP_OPTIONS,
    add_engine_flags,
    engine_config,
)
from lullm.cli.flag.model import add_model_argument, take_model
from lullm.cli.flag.settings import add_config_flag
from lullm.errors import ConfigError, LullmError

if TYPE_CHECKING:
    from lullm.config.engine import EngineConfig

_ADAPTERS = LORA_OPTIONS | PROMPT_ADAPTER_OPTIONS
NOT_ENGINE = frozenset({"served_model_name", "worker_extension_cls", *SLEEP_OPTIONS, *_ADAPTERS})
SOME_FAILED = 1
STDIO = "-"
MAX_BODY_BYTES = 1 << 28  # the file is the user's own

EXAMPLES = """\
examples:
  lullm run-batch path/to/folder -i requests.jsonl -o answers.jsonl
  {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 9}}"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm run-batch`."""
    parser.description = (
        "Answer every line of a file, in OpenAI's batch form: chats, completions, embeddings, scores. "
        "All lines share the engine's batches, and any model name is taken. The exit code is 1 if a line failed; its "
        "answer says why."
    )
    parser.epilog = EXAMPLES
    add_model_argument(parser)
    parser.add_argument("-i", "--input-file", metavar="FILE", help="requests, a JSON object a line; '-'")
    parser.add_argument("-o", "--output-file", metavar="FILE", help="answers, in the same order; '-'")
    add_config_flag(parser)
    add_engine_flags(parser, without=NOT_ENGINE)
    parser.set_defaults(run=run, not_engine=NOT_ENGINE)


def run(args: argparse.Namespace) -> int:
    """Answer the file. Raises LullmError."""
    if args.input_file is None or args.output_file is None:
        raise ConfigError("run-batch needs --input-file and --output-file")
    take_model(args, args.positional_model)
    config = engine_config(args)
    with _opened(args.input_file, args.output_file) as (lines, out):
        import asyncio  # the engine is loaded after the flags are checked

        num_answered, num_failed = asyncio.run(_answer_all(config, lines, out))
    print(f"{num_answered} requests answered, {num_failed} of them with an error", file=sys.stderr)
    return SOME_FAILED if num_failed else 0


@contextlib.contextmanager
def _opened(requests: str, answers: str) -> Iterator[tuple[BinaryIO, TextIO]]:
    """Both files, open until the block ends. Raises ConfigError: they cannot be opened, or are the same."""
    with contextlib.ExitStack() as stack:
        try:
            lines = sys.stdin.buffer if requests == STDIO else stack.enter_context(open(requests, "rb"))
            if STDIO not in (requests, answers) and Path(answers).exists() and Path(requests).samefile(answers):
                raise ConfigError("--output-file is the file of the requests, which it would write over")
            # Its buffer holds a line: a run that ends early keeps the answers before.
            out = sys.stdout if answers == STDIO else stack.enter_context(open(answers, "w", 1, "utf-8"))
        except OSError as error:
            raise ConfigError(f"the batch file cannot be opened: {error}") from None
        yield lines, out


async def _answer_all(config: "EngineConfig", lines: Iterable[bytes], out: TextIO) -> tuple[int, int]:
    """(number of requests, number of failed ones)."""
    from lullm.engine.async_llm_engine import AsyncLLMEngine
    from lullm.server.app import build_app
    from lullm.server.batch.batch_file import answers
    from lullm.server.options import ServerOptions

    engine = AsyncLLMEngine(config)
    num_answered = num_failed = 0
    try:
        app = build_app(engine, ServerOptions(any_model_name=True, max_body_bytes=MAX_BODY_BYTES))
        async with contextlib.aclosing(answers(app, lines)) as found:
            async for answer in found:
                num_answered += 1
                num_failed += answer["error"] is not None
                _write(out, json.dumps(answer, ensure_ascii=False) + "\n")
    finally:
        await engine.shutdown(drain=False)
    return num_answered, num_failed


def _write(out: TextIO, line: str) -> None:
    """Write a line. Raises BrokenPipeError: its reader has ended. LullmError: the disk is full, or the like."""
    try:
        out.write(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        # Closing would write the rest of the line, and raise the same again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        raise LullmError(f"cannot write to {out.name}: {error.strerror}; it has the answers up to here") from None
