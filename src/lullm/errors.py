"""One exception tree: whatever lullm raises for something a user can cause is a `LullmError`.

The text of an error says what was wrong and what to do next. A face maps the classes to its own codes
(the server: `InvalidRequestError` -> 400, `EngineDeadError` -> 500, ...).
"""


class LullmError(Exception):
    """Root of the tree."""


class ConfigError(LullmError, ValueError):
    """An engine option is wrong or does not fit the others."""


class UnsupportedError(ConfigError):
    """A valid wish whose machinery does not exist in this version."""


class ModelLoadError(LullmError):
    """The model folder is missing, incomplete, damaged, or of an unknown architecture."""


class FamilyLimitError(ModelLoadError):
    """The model's family does not compute what its `config.json` asks for; another implementation may.

    `keys`: those of the file whose values it does not compute.
    """

    def __init__(self, message: str, keys: tuple[str, ...] = ()):
        super().__init__(message)
        self.keys = keys

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.keys)


class CacheSizeError(LullmError):
    """The KV cache does not fit into the memory that was granted."""


class InvalidRequestError(LullmError, ValueError):
    """A request that can never be served as it was written.

    `param` names the offending field, `code` is for programs ('context_length_exceeded'); both as in OpenAI's error
    envelope, None where there is none.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.param = param
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.param, self.code)


class EngineAsleepError(LullmError):
    """The engine has released memory that the call needs; wake it up first."""


class ModelUnavailableError(LullmError):
    """A model of a fleet gets no memory in time, or has just failed; ask again in `retry_s` seconds."""

    def __init__(self, message: str, retry_s: float = 5.0):
        super().__init__(message)
        self.retry_s = retry_s

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.retry_s)


class SleepCancelledError(LullmError):
    """A sleep that waited for running requests was overtaken by a call that came later; nothing was released."""


class SleepError(LullmError):
    """What must survive a sleep could not be saved (the disk is full), and the engine is as it was. Or the operating
    system did not take the memory back; then the engine sleeps, and nothing is lost."""


class WakeUpError(LullmError):
    """Released contents could not be restored unchanged; all that slept is asleep again."""


class HibernationError(LullmError):
    """Conversations could not be written to a folder, or not be resumed from it; engine and folder are as before."""


class EngineDeadError(LullmError):
    """The engine loop ended (a failed step, or a shutdown); the request cannot be served by it any more."""


class WorkerLostError(EngineDeadError):
    """A worker of the engine has died, or has not answered in time; the engine's loop ends with it."""


class HibernatedError(EngineDeadError):
    """The engine has written its conversations to a folder and ended; a new engine resumes them."""
