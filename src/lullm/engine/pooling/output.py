"""RequestVector: the one output of a request that pools."""

from lullm.sched.intake import SequenceUpdate
from lullm.types.pooling.outputs import PoolingOutput, PoolingRequestOutput
from lullm.types.pooling.params import Pooling
from lullm.types.sequence import SequenceGroup, SequenceStatus


class RequestVector:
    """Gives its output once the request has ended, and no output before."""

    def __init__(self, group: SequenceGroup, pooling: Pooling):
        self._group = group
        self._pooling = pooling

    def take(self, update: SequenceUpdate) -> None:
        """Apply a step's change. Returns None: a vector has no stop strings."""

    def abort(self) -> None:
        """Mark the request as aborted."""

    def output(self) -> PoolingRequestOutput[PoolingOutput] | None:
        """The request's output after this step, or None."""
        group, rows = self._group, self._group.pooled
        if not group.is_finished:
            return None
        assert rows is not None, "it pools"
        seq = group.seqs[0]
        is_whole = seq.status is SequenceStatus.FINISHED_STOPPED
        return PoolingRequestOutput(
            group.request_id,
            PoolingOutput(rows.data(self._pooling) if is_whole else []),
            group.request.prompt_token_ids,
            group.num_cached_tokens or 0,
            finish_reason="stop" if is_whole else "abort",
            stop_reason=seq.stop_reason,
            metrics=group.metrics,
        )
