"""HibernationCalls: an engine's calls to write conversations or prefixes to a folder, and to go on with it."""

import os
from collections.abc import Sequence

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.engine.assembly import bytes_per_block
from lullm.engine.hibernation.hibernation import Hibernation
from lullm.engine.hibernation.identity import UNTRIED_BACKENDS
from lullm.engine.input.processor import InputProcessor
from lullm.engine.lifecycle import Lifecycle
from lullm.engine.lora.adapters import Adapters
from lullm.engine.step_loop import StepLoop
from lullm.errors import EngineAsleepError, HibernatedError, HibernationError, UnsupportedError
from lullm.executor.executor import Executor
from lullm.sched.scheduler import Scheduler
from lullm.text.tokenizer import Tokenizer
from lullm.types.hibernation.report import HibernationForecast, HibernationReport, ResumeReport
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest


class HibernationCalls:
    """Base of `LLMEngine`."""

    config: ResolvedConfig
    model_config: ModelConfig
    tokenizer: Tokenizer
    input_processor: InputProcessor
    model_executor: Executor
    lifecycle: Lifecycle
    _adapters: Adapters
    _loop: StepLoop
    _scheduler: Scheduler

    def check_health(self) -> None:
        """Check that the engine serves. Raises EngineDeadError."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Abort all requests and release all memory. Idempotent."""
        raise NotImplementedError

    def hibernate(self, path: str | os.PathLike[str]) -> HibernationReport:
        """Write all requests and their KV to the folder `path`, then shut the engine down. Blocking.

        An engine of the same model and options resumes them, mostly in another process: each goes on with its next
        token, without computing its prompt again. Outputs that no `step` has returned yet, and cached prefixes, are
        written, too. An older hibernation in the folder is replaced.

        Raises:
            HibernationError: something else lies there, or the disk is full; the engine goes on.
            EngineAsleepError: memory is released; call `wake_up` first.
            UnsupportedError: workers on several machines.
        """
        return self.hibernate_with(path, (), ())

    def hibernate_with(
        self, path: str | os.PathLike[str], queued: Sequence[GenerateRequest], outputs: Sequence[EngineOutput]
    ) -> HibernationReport:
        """`hibernate`, with requests that the engine has not seen yet, and outputs that its caller still holds."""
        report = self._hibernation().write(_name_of(path), queued, outputs)
        self._loop.end(
            HibernatedError(
                f"the engine hibernates in {report.path}; resume({report.path!r}) in a new one goes on with it"
            )
        )
        self.shutdown()
        return report

    def explain_hibernate(self) -> HibernationForecast:
        """What `hibernate` would write now. Changes nothing; raises as `hibernate` does."""
        return self.explain_hibernate_with((), ())

    def explain_hibernate_with(
        self, queued: Sequence[GenerateRequest], outputs: Sequence[EngineOutput]
    ) -> HibernationForecast:
        """`explain_hibernate`; see `hibernate_with`."""
        return self._hibernation().forecast(queued, outputs)

    def resume(self, path: str | os.PathLike[str]) -> ResumeReport:
        """Take in what `hibernate` has written to the folder `path`, which stays as it is. Blocking.

        The engine has no unfinished request, and forgets the prefixes that it has cached. Requests keep their ids;
        steps then go on with them. If its KV cache is smaller, those whose blocks find no room are computed again.

        Raises:
            HibernationError: the folder is damaged, or was written by another version of lullm, or by an engine of
                other weights or options, which the message names; engine and folder are as before.
            EngineAsleepError: memory is released; call `wake_up` first.
            UnsupportedError: workers on several machines.
        """
        hibernation = self._hibernation()
        self._check_empty("resume")
        return hibernation.read(_name_of(path))

    def save_prefix_cache(self, path: str | os.PathLike[str]) -> HibernationReport:
        """Write the KV blocks that later requests can find to the folder `path`; the engine goes on. Blocking.

        This includes the blocks of running requests, but not the requests. An older hibernation in the folder is
        replaced. Raises as `hibernate` does.
        """
        return self._hibernation().write_prefixes(_name_of(path))

    def load_prefix_cache(self, path: str | os.PathLike[str]) -> ResumeReport:
        """Replace the cached prefixes by those in the folder `path`, as far as there is room. Blocking.

        The folder is of `save_prefix_cache`, or of `hibernate`, whose requests stay there. Raises as `resume` does.
        """
        hibernation = self._hibernation()
        self._check_empty("load")
        return hibernation.read_prefixes(_name_of(path))

    def _check_empty(self, deed: str) -> None:
        num_unfinished = len(self._scheduler.unfinished_ids)
        if num_unfinished:
            raise HibernationError(f"this engine has {num_unfinished} requests of its own; {deed} in one that has none")

    def _hibernation(self) -> Hibernation:
        """The engine's parts, with no step in flight and no KV of other weights."""
        self.check_health()
        backend = self.config.executor_backend
        if backend in UNTRIED_BACKENDS:
            raise UnsupportedError(
                f"hibernation is not there for distributed_executor_backend={backend!r}, whose workers may be on "
                "several machines; use 'mp' or 'uni'"
            )
        tags = self.lifecycle.sleeping_tags
        if tags:
            raise EngineAsleepError(f"the engine is asleep ({', '.join(tags)} released); call wake_up() first")
        self._loop.drain()
        self.lifecycle.drop_stale_kv()
        return Hibernation(
            config=self.config,
            model=self.model_config,
            executor=self.model_executor,
            scheduler=self._scheduler,
            loop=self._loop,
            inputs=self.input_processor,
            adapters=self._adapters,
            tokenizer=self.tokenizer,
            block_bytes=bytes_per_block(self.config, self.model_config),
        )


def _name_of(path: str | os.PathLike[str]) -> str:
    """The path as text. Raises HibernationError: it is none."""
    try:
        return os.fspath(path) if isinstance(path, str) else os.fsdecode(path)
    except TypeError as error:
        raise HibernationError(f"{path!r} is no path of a folder: {error}") from None
