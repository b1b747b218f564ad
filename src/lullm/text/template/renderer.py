"""Renderer: renders templates in this process if they are surely quick, otherwise in one that can be killed.

Most templates and conversations need little: a fixed budget, and some for each message. A rendering that exceeds it, or
uses an operation of unknown cost, is repeated in a process of its own, with more time and memory.
"""

from collections.abc import Mapping
from typing import Any

import jinja2

from lullm.text.template.failure import OutOfBounds, WouldBlock
from lullm.text.template.meter import deep_size
from lullm.text.template.process import ProcessBounds, RenderProcess
from lullm.text.template.sandbox import Sandbox

_MAX_SOURCE_CHARS = 100_000
"""Longer templates are not compiled here. The longest known have 30,000 characters; a megabyte takes seconds."""
_MIN_STEPS = 10_000
_STEPS_PER_ITEM = 50
"""Steps per item of the conversation; templates of popular families take 3 to 15. A step takes 0.3 to 1 us."""
_CHARS_PER_STEP = 8
_MAX_STEPS = 5_000_000
_MIN_SIZE = 1_000_000
_SIZE_PER_CHAR = 4


class Renderer:
    """Renders one model's templates. Thread-safe.

    Args:
        sources: the templates by name. bounds: of a rendering in the other process.

    Raises:
        Broken: one is no valid template. OutOfBounds: compiling it takes too much.
    """

    def __init__(self, sources: Mapping[str, str], bounds: ProcessBounds | None = None):
        self._bounds = bounds or ProcessBounds()
        self._sandbox = Sandbox(only_bounded=True)
        self._process = RenderProcess(sources, self._bounds)
        self._templates: dict[str, jinja2.Template] = {}
        for name, source in sources.items():
            template = self._sandbox.compile_bounded(source) if len(source) <= _MAX_SOURCE_CHARS else None
            if template is not None:
                self._templates[name] = template
        if len(self._templates) < len(sources):
            self._process.start()

    def render(self, name: str, variables: Mapping[str, Any], may_block: bool = True) -> str:
        """The text of a template. Takes milliseconds; with `may_block` up to `ProcessBounds.wall_s`.

        Raises:
            TemplateFailure. LullmError: the other process cannot be started. WouldBlock: it is needed.
        """
        if name in self._templates:
            try:
                return self._render_here(self._templates[name], dict(variables))
            except OutOfBounds:
                pass  # the process has larger bounds for all of these
        if not may_block:
            raise WouldBlock
        return self._process.render(name, variables)

    def _render_here(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        size, num_items = deep_size(variables, self._bounds.max_size)
        steps = _MIN_STEPS + num_items * _STEPS_PER_ITEM + size // _CHARS_PER_STEP
        max_size = min(_MIN_SIZE + size * _SIZE_PER_CHAR, self._bounds.max_size)
        return self._sandbox.render(template, variables, min(steps, _MAX_STEPS), max_size)

    @property
    def has_process(self) -> bool:
        """Whether the other process has been started."""
        return self._process.has_started

    def close(self) -> None:
        """End the other process. Idempotent; a later rendering that needs it raises LullmError."""
        self._process.close()
