"""Tally: adds finished requests of an `LLM` to its metrics."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lullm.metrics.reader import Metric, read_metrics
from lullm.types.outputs import RequestMetrics, RequestOutput
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams

if TYPE_CHECKING:
    from lullm.metrics.vllm import MonitoredEngine, VllmMetrics

_MOST_KEPT = 1024


@dataclass(frozen=True, slots=True)
class _End:
    """The facts of a finished request that histograms count. `params`: None where its prompt was pooled."""

    times: RequestMetrics
    prompt_len: int
    output_lens: tuple[int, ...]
    params: SamplingParams | None


class Tally:
    """The metrics of one engine. Their library takes 25 ms to load: at the first `read`, or after 1024 requests."""

    def __init__(self, engine: "MonitoredEngine"):
        self._engine = engine
        self._ends: list[_End] = []
        self._metrics: VllmMetrics | None = None

    def add(self, requests: Iterable[GenerateRequest], outputs: Iterable[EngineOutput]) -> None:
        """Add the last outputs of `requests`; some may be missing."""
        asked = {request.request_id: request for request in requests}
        for output in outputs:
            if output.metrics is None:
                continue
            lens: tuple[int, ...] = ()
            params = None
            if isinstance(output, RequestOutput):
                lens = tuple(len(completion.token_ids) for completion in output.outputs)
                params = asked[output.request_id].params
            self._ends.append(_End(output.metrics, len(output.prompt_token_ids), lens, params))
        if len(self._ends) > _MOST_KEPT:
            self._taken_in()

    def read(self) -> list[Metric]:
        """The current values of all metrics."""
        return read_metrics(self._taken_in().registry)

    def _taken_in(self) -> "VllmMetrics":
        if self._metrics is None:
            from lullm.metrics.vllm import VllmMetrics

            self._metrics = VllmMetrics(self._engine)
        for end in self._ends:
            self._metrics.observe(end.times, end.prompt_len, end.output_lens, end.params)
        self._ends.clear()
        return self._metrics
