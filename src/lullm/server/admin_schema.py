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


class AdminBody(WireModel):
    """The common field: which model, where there are several."""

    model: str | None = None


class ModelBody(WireModel):
    """POST /models/load and /models/unload."""

    model: str


class ExplainBody(AdminBody):
    """GET /sleep/explain. The engine checks levels and tags."""

    level: int = 1
    tags: Tags = None
    backup: BackupTarget = "auto"
    keep_prefix_cache: bool = False


class SleepBody(ExplainBody):
    """POST /sleep."""

    mode: SleepMode = "keep"


class PauseBody(AdminBody):
    """POST /pause."""

    mode: SleepMode = "abort"
    clear_cache: bool = True


class EmptyBody(AdminBody):
    """A call without arguments of its own."""


class RemoteCallBody(AdminBody):
    """POST /collective_rpc. `EngineClient.remote_methods` are the methods that it can call."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None


class TagsBody(AdminBody):
    """POST /wake_up, and the endpoints of other servers that do the same."""

    tags: Tags = None
