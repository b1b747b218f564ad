"""Chat templates spliced from hostile ones, or drawn from a grammar: each ends within bounds, as text or an error."""

import random
import re
import time
from pathlib import Path

from kit.template.hostile import texts
from text.template.test_random import START, some

from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.text.chat_template import ChatTemplate
from lullm.text.template.process import ProcessBounds
from lullm.units import MIB

from .target import Target

BOUNDS = ProcessBounds(cpu_s=0.06, memory_bytes=192 * MIB, max_size=2_000_000)
LIMIT_S = 3.0
"""Of this process's own time, for compiling and rendering: what runs in another process is bounded by `BOUNDS`."""
MESSAGES = [{"role": "user", "content": "Hi <|x|> \u20ac" * 20}, {"role": "assistant", "content": "Ho"}]
_PARTS = re.compile(r"({%.*?%}|{{.*?}})", re.S)
_WORDS = re.compile(r"(\W)")


class TemplateTarget(Target):
    """A round is one template, loaded and rendered."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._sources = [text for _, text in texts()]

    def round(self, rng: random.Random) -> None:
        if rng.random() < 0.3:
            source = START + "{% for k in range(99) %}" + some(rng, "B", 3) + some(rng, "B", 3) + "{% endfor %}"
        else:
            source = self._spliced(rng)
        began = time.process_time()
        try:
            text = ChatTemplate(source, {"eos_token": "</s>"}, BOUNDS).render(MESSAGES, tools=None)
        except ModelLoadError:
            self.counts["refused at load"] += 1
        except InvalidRequestError:
            self.counts["refused when rendered"] += 1
        else:
            assert isinstance(text, str) and len(text.encode()) <= 4 * BOUNDS.max_size, source
            self.counts["rendered"] += 1
        assert time.process_time() - began < LIMIT_S, source

    def _spliced(self, rng: random.Random) -> str:
        """The parts of two templates mixed, and now and then the words of one part."""
        one, other = (_PARTS.split(rng.choice(self._sources)) for _ in range(2))
        place = rng.randrange(len(one))
        parts = one[:place] + other[rng.randrange(len(other)) :] + one[place:]
        for _ in range(rng.randrange(3)):
            place = rng.randrange(len(parts))
            words, more = _WORDS.split(parts[place]), _WORDS.split(rng.choice(other))
            words[rng.randrange(len(words))] = rng.choice(more)
            parts[place] = "".join(words)
        return "".join(parts)
