"""The source of answers on the terminal: an engine in this process, or with --url a running server."""

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lullm.cli.flag.engine import engine_config
from lullm.cli.flag.key import API_KEY_VARIABLE
from lullm.cli.flag.sampling import MAX_RAW_TOKENS, sampling_changes
from lullm.cli.talk.ears import Ears
from lullm.cli.talk.sound import TranscriptOptions, form_of
from lullm.cli.talk.terminal import Messages, Prompt, Summary, Terminal
from lullm.config.engine import EngineConfig
from lullm.config.generation import LLAMA_CPP, left_open
from lullm.config.json_file import given_path
from lullm.config.lora.adapter import AdapterConfig
from lullm.config.option.option import options_of
from lullm.engine.interrupt import deferred_interrupt
from lullm.engine.pooling.rules import check_generates
from lullm.engine.start.head_start import head_start
from lullm.errors import ConfigError, LullmError
from lullm.log import log_to_stderr
from lullm.text.reply.event import ReplyReader, Text, Thinking
from lullm.types.lora.request import LoRARequest
from lullm.types.outputs import CompletionOutput, RequestOutput
from lullm.types.request import CallerRequest, Conversation
from lullm.types.sampling_params import OutputKind

if TYPE_CHECKING:
    from lullm.cli.remote.server import RemoteServer
    from lullm.engine.llm_engine import LLMEngine


def add_url_flags(parser: argparse.ArgumentParser) -> None:
    """Add --url and --api-key."""
    group = parser.add_argument_group("a running server")
    group.add_argument("--url", help="an OpenAI-compatible server that answers, instead of an engine in this process")
    group.add_argument(
        "--api-key", metavar="KEY", help=f"the server's, if it has one (default: the environment's {API_KEY_VARIABLE})"
    )


def add_lora_flag(parser: argparse.ArgumentParser) -> None:
    """Add --lora."""
    parser.add_argument("--lora", metavar="PATH", help="answer with this LoRA adapter, a folder in PEFT's form")


@contextlib.contextmanager
def open_terminal(args: argparse.Namespace) -> Iterator[Terminal]:
    """A terminal over the engine or server of the flags, until the block ends. Raises LullmError."""
    sampling_changes(args)
    if args.url is not None and args.lora is not None:
        raise ConfigError("--lora is for an engine in this process; a server's adapters are models: --model NAME")
    if args.url is not None:
        yield Terminal(_server(args))
        return
    if args.api_key is not None:
        raise ConfigError("--api-key is for a server; name it by --url")
    config = dataclasses.replace(engine_config(args), seed=None)
    lora = None if args.lora is None else LoRARequest("lora", 1, str(given_path(args.lora)))
    if lora is not None:
        settings = AdapterConfig.from_folder(Path(lora.lora_path))
        config = dataclasses.replace(
            config, enable_lora=True, max_lora_rank=max(settings.rank, *settings.ranks.values(), 1)
        )
    log_to_stderr("INFO" if args.verbose else "WARNING")
    with head_start(config) as ahead:
        # Torch is loaded here, after the flags are checked.
        from lullm.engine.llm_engine import LLMEngine

        engine = LLMEngine(config, ahead=ahead)
    with contextlib.closing(EnginePartner(engine, lora)) as partner:
        if lora is not None:
            engine.add_lora(lora)
        yield Terminal(partner)


def _server(args: argparse.Namespace) -> "ServerPartner":
    given = {option.name for option in options_of(EngineConfig)} & vars(args).keys() - args.not_engine - {"model"}
    if given:
        flags = ", ".join(sorted("--" + name.replace("_", "-") for name in given))
        raise ConfigError(f"{flags}: for an engine in this process, not for the server of --url")
    from lullm.cli.remote.server import RemoteServer, key_of_environment  # it loads an HTTP client: 15 ms

    server = RemoteServer(args.url, args.api_key or key_of_environment(API_KEY_VARIABLE))
    return ServerPartner(server, getattr(args, "model", None))


class EnginePartner:
    """An engine in this process, which this object steps. `lora`: the adapter of all answers."""

    def __init__(self, engine: "LLMEngine", lora: LoRARequest | None = None):
        self._lora = lora
        self.name = str(engine.config.served_model_name)
        own = {name: getattr(engine.default_params, name) for name in LLAMA_CPP}
        self.defaults = own | left_open(LLAMA_CPP, engine.stated_params)
        self._engine = engine
        self._num_requests = 0

    def close(self) -> None:
        """Release the engine's memory."""
        self._engine.shutdown()

    @property
    def has_template(self) -> bool:
        return self._engine.tokenizer.chat_template is not None

    @property
    def hears(self) -> bool:
        return self._engine.model_config.hearing is not None

    def check_chat(self, messages: Messages) -> None:
        check_generates(self._engine.model_config)
        self._engine.input_processor.tokenize(Conversation(list(messages)))

    def transcript(self, data: bytes, options: TranscriptOptions, summary: Summary) -> Iterator[str]:
        return Ears(self._engine, summary).transcript(data, options)

    def pieces(self, prompt: Prompt, changes: dict[str, Any], summary: Summary) -> Iterator[Text | Thinking]:
        from lullm.text.reply.reader import open_reader  # it loads numpy, which `lullm --help` need not wait for

        request_id = f"terminal-{self._num_requests}"
        self._num_requests += 1
        limit = {} if "max_tokens" in self._engine.stated_params else _limit(prompt)
        params = self._engine.default_params.replace(**(limit | self.defaults | changes), output_kind=OutputKind.DELTA)
        asked = prompt if isinstance(prompt, str) else Conversation(list(prompt))
        request = self._engine.input_processor.process(CallerRequest(request_id, asked, params, lora=self._lora))
        reader = open_reader(request)
        self._engine.add_processed(request)
        with deferred_interrupt() as interrupt:
            while self._engine.has_unfinished_requests():
                if interrupt.is_set():
                    self._engine.abort_request(request_id, wants_output=False)
                    break
                for output in cast(list[RequestOutput], self._engine.step()):  # the requests are for text only
                    summary.add(output)
                    for completion in output.outputs:
                        yield from _shown(completion, reader)


class ServerPartner:
    """A server that speaks OpenAI's API. `model`: its name there; None: the server's first."""

    has_template = True

    def __init__(self, server: "RemoteServer", model: str | None):
        self._server = server
        self.name = model or self._first_model()
        self.defaults = self._open_defaults()

    def _first_model(self) -> str:
        models = self._server.get_json("/v1/models").get("data")
        if not isinstance(models, list) or not models or not isinstance(models[0], dict):
            raise LullmError(f"the server on {self._server.url} names no model; name one yourself")
        return str(models[0].get("id"))

    def _open_defaults(self) -> dict[str, Any]:
        """The sampling defaults of a lullm or llama.cpp server. Its OpenAI endpoints may differ. Other servers have no
        such page.
        """
        try:
            params = self._server.get_json("/props")["default_generation_settings"]["params"]
            return {name: params[name] for name in LLAMA_CPP}
        except (LullmError, KeyError, TypeError):
            return {}

    @property
    def hears(self) -> bool:
        try:
            return self._server.get_json("/props")["modalities"]["audio"] is True
        except (LullmError, KeyError, TypeError):
            return False  # servers without such a page may have OpenAI's endpoint for transcriptions

    def check_chat(self, messages: Messages) -> None:
        """Check nothing: the server reports with the first answer what it lacks."""

    def transcript(self, data: bytes, options: TranscriptOptions, summary: Summary) -> Iterator[str]:
        path = "/v1/audio/translations" if options.translate else "/v1/audio/transcriptions"
        yield self._server.post_form(path, *form_of(options, self.name, data)).rstrip("\n")

    def pieces(self, prompt: Prompt, changes: dict[str, Any], summary: Summary) -> Iterator[Text | Thinking]:
        body = {"model": self.name, "stream": True, "stream_options": {"include_usage": True}}
        body |= _limit(prompt) | self.defaults | changes
        is_text = isinstance(prompt, str)
        body |= {"prompt": prompt} if is_text else {"messages": list(prompt)}
        path = "/v1/completions" if is_text else "/v1/chat/completions"
        with contextlib.closing(self._server.stream(path, body)) as events:
            for event in events:
                usage = event.get("usage") or {}
                summary.num_prompt_tokens = usage.get("prompt_tokens", summary.num_prompt_tokens)
                summary.num_tokens = usage.get("completion_tokens", summary.num_tokens)
                for choice in event.get("choices") or []:
                    summary.is_cut = choice.get("finish_reason") == "length"
                    for piece in _said({"content": choice.get("text")} if is_text else choice.get("delta", {})):
                        summary.tick(True)
                        yield piece


def _limit(prompt: Prompt) -> dict[str, Any]:
    return {"max_tokens": MAX_RAW_TOKENS if isinstance(prompt, str) else None}


def _shown(completion: CompletionOutput, reader: ReplyReader) -> Iterator[Text | Thinking]:
    """The text and thoughts of a step's completion. Raises LullmError: it was aborted."""
    events = reader.feed(completion.text, completion.token_ids)
    events += reader.finish() if completion.finish_reason is not None else []
    yield from (event for event in events if isinstance(event, (Text, Thinking)))
    if completion.finish_reason == "abort":
        raise LullmError(f"the answer ends here: {completion.stop_reason}")


def _said(delta: dict[str, Any]) -> Iterator[Text | Thinking]:
    """The thoughts and the text of a server's delta. Servers have two names for thoughts."""
    for kind, names in ((Thinking, ("reasoning", "reasoning_content")), (Text, ("content",))):
        if text := next(filter(None, map(delta.get, names)), None):
            yield kind(text)
