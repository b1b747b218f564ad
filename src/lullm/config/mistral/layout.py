"""Which layout a folder has, and its config.json: as it is, or as params.json says.

A folder with both files is read by its config.json.
"""

from pathlib import Path
from typing import Any

from lullm.config.family.text_model import thinking_part
from lullm.config.json_file import read_object
from lullm.config.mistral.params import config_data
from lullm.config.vision import phi4mm
from lullm.config.vision.internvl_chat import in_own_words
from lullm.errors import ModelLoadError

CONFIG_FILE = "config.json"
PARAMS_FILE = "params.json"


def has_own_layout(folder: Path) -> bool:
    """Whether this is a folder of Mistral's, with params.json and without config.json."""
    return (folder / PARAMS_FILE).is_file() and not (folder / CONFIG_FILE).exists()


def has_config(folder: Path) -> bool:
    """Whether the folder says what model it holds."""
    return (folder / CONFIG_FILE).exists() or (folder / PARAMS_FILE).is_file()


def config_path(folder: Path) -> Path:
    """The file that says it."""
    return folder / (PARAMS_FILE if has_own_layout(folder) else CONFIG_FILE)


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder, in transformers' words.

    Raises:
        FileNotFoundError: there is no such file, nor a params.json.
        ModelLoadError: the file is damaged, or needs a feature that is not implemented.
    """
    if not has_own_layout(folder):
        return thinking_part(phi4mm.in_own_words(in_own_words(read_object(folder / CONFIG_FILE), folder)))
    try:
        return config_data(read_object(folder / PARAMS_FILE))
    except ModelLoadError as error:
        raise ModelLoadError(f"{folder / PARAMS_FILE}: {error}") from None
