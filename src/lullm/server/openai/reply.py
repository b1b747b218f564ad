"""Reply: the one completion of a generation as events, for dialects whose answers have no choices."""

from dataclasses import dataclass

from lullm.engine.client import EngineClient
from lullm.server.openai.generation import Generation
from lullm.server.openai.schema import ChatBody
from lullm.text.reply.event import CallStart, ReplyEvent, ReplyReader, Thinking
from lullm.text.reply.form.detection import reply_form
from lullm.text.reply.reader import open_reader
from lullm.types.outputs import CompletionOutput, RequestOutput
from lullm.types.reply.form import ReplyForm


@dataclass(slots=True)
class Reply:
    """The events of one output after the other, and the facts of the reply so far.

    `completion`: the last output's; its `finish_reason` is the reply's once the outputs have ended. `cached_tokens`: of
    the prompt. `has_calls`: whether a tool was called.
    """

    generation: Generation
    reader: ReplyReader
    completion: CompletionOutput
    cached_tokens: int = 0
    has_calls: bool = False

    @classmethod
    def of(cls, generation: Generation) -> "Reply":
        """The reply of a generation with one prompt and one completion. A raw prompt's reply is plain text."""
        [request] = generation.requests
        reader = open_reader(request) if isinstance(generation.asked, ChatBody) else ReplyReader()
        return cls(generation, reader, CompletionOutput(0, "", []))

    def read(self, output: RequestOutput) -> list[ReplyEvent]:
        """The events of an output, which may be none."""
        [self.completion] = output.outputs
        self.cached_tokens = output.num_cached_tokens
        events = self.reader.feed(self.completion.text, self.completion.token_ids)
        if self.completion.finish_reason is not None:
            events += self.reader.finish()
        if self._hides_thinking:
            events = [event for event in events if not isinstance(event, Thinking)]
        self.has_calls = self.has_calls or any(isinstance(event, CallStart) for event in events)
        return events

    async def whole(self) -> tuple[list[ReplyEvent], RequestOutput]:
        """All events of the reply, and its output. Raises as `Generation.run` does."""
        [output] = [output async for _, output in self.generation.last_outputs()]
        return self.read(output), output

    @property
    def _hides_thinking(self) -> bool:
        asked = self.generation.asked
        return isinstance(asked, ChatBody) and not asked.include_reasoning

    @property
    def thinking_tokens(self) -> int:
        """The tokens of the model's thoughts."""
        return self.reader.num_thinking_tokens


def reply_form_of(engine: EngineClient) -> ReplyForm:
    """The form of the model's calls and thoughts, if it has one."""
    config, template = engine.config, engine.tokenizer.chat_template
    return reply_form(
        template if engine.model_config.generates else None, config.tool_call_parser, config.reasoning_parser
    )
