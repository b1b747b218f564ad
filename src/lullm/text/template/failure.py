"""Failures of a rendering."""


class TemplateFailure(Exception):
    """Root of these. The text says what happened, without naming the template."""


class Broken(TemplateFailure):
    """Not a valid template."""


class Rejected(TemplateFailure):
    """The template called `raise_exception`."""


class Forbidden(TemplateFailure):
    """The template did something that the sandbox forbids, such as changing a message."""


class Failed(TemplateFailure):
    """The template raised an error: an undefined name, a wrong type, ..."""


class OutOfBounds(TemplateFailure):
    """The rendering takes too long, or its values grow too large."""


class WouldBlock(Exception):
    """Not a failure: only another process may render this, and the caller does not wait for it."""
