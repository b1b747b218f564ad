"""The wire forms of the admin endpoints' arguments, as pydantic models."""

from typing import Annotated, Any

from pydantic import AfterValidator

from lullm.server.wire import Strings, WireModel
from lullm.types.sleep import BackupTarget, SleepMode


def _check_tags(tags: list[str] | None) -> list[str] | None:
    if tags == []:
        raise ValueError("must name at least one; leave it out for all")
    return tags


Tags = Annotated[Strings | None, AfterValidator(_check_tags)]


class ExplainBody(WireModel):
    """GET /sleep/explain. The engine checks levels and tags."""

    level: int = 1
    tags: Tags = None
    backup: BackupTarget = "auto"
    keep_prefix_cache: bool = False


class SleepBody(ExplainBody):
    """POST /sleep."""

    mode: SleepMode = "keep"


class PauseBody(WireModel):
    """POST /pause."""

    mode: SleepMode = "abort"
    clear_cache: bool = True


class EmptyBody(WireModel):
    """A call without arguments."""


class RemoteCallBody(WireModel):
    """POST /collective_rpc. `EngineClient.remote_methods` are the methods that it can call."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None


class TagsBody(WireModel):
    """POST /wake_up, and the endpoints of other servers that do the same."""

    tags: Tags = None
