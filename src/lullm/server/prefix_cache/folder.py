"""The prefix cache of a server in a folder, from the end of one process to the start of the next."""

import os

from lullm.engine.client import EngineClient
from lullm.errors import LullmError
from lullm.log import get_logger

logger = get_logger(__name__)


async def load_prefixes(engine: EngineClient, folder: str) -> None:
    """Begin with what the last server left, if it did; a folder that cannot be used is worth a warning only."""
    try:
        if os.path.isdir(folder) and os.listdir(folder):
            await engine.load_prefix_cache(folder)
    except (LullmError, OSError) as error:
        logger.warning("the server starts with an empty prefix cache: %s", error)


async def save_prefixes(engine: EngineClient, folder: str) -> None:
    """Leave the cached prefixes to the next server. An engine that sleeps is woken for it.

    If there are none, as after a sleep that dropped them, the folder stays as it was, and a sleeping engine asleep.
    """
    try:
        found = await engine.occupancy(1)
        if not any(found.device.cells + found.host.cells):
            logger.info("no prefixes are cached; %s stays as it was", folder)
            return
        if engine.sleeping_tags:
            await engine.wake_up()
        await engine.save_prefix_cache(folder)
    except LullmError as error:
        logger.error("the prefix cache could not be saved: %s", error)
