"""The fuzz targets by name."""

from .engine import EngineTarget
from .folder import FolderTarget
from .gpu import GpuTarget
from .op import OpTarget
from .scheduler import SchedulerTarget
from .server import ServerTarget
from .target import Target
from .template import TemplateTarget

TARGETS: dict[str, type[Target]] = {
    "engine": EngineTarget,
    "gpu": GpuTarget,
    "server": ServerTarget,
    "folder": FolderTarget,
    "scheduler": SchedulerTarget,
    "op": OpTarget,
    "template": TemplateTarget,
}
