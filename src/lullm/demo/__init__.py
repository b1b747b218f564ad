"""The bundled demo model: its files under `model/`, and the corpus, training and evaluation code it was made with.

Nothing here is imported by the engine but `model_path`.
"""

from __future__ import annotations

from pathlib import Path


def model_path() -> Path:
    """Return the folder of the bundled checkpoint.

    Raises FileNotFoundError when the package was installed without it.
    """
    folder = Path(__file__).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(f"the bundled demo model is missing: {folder}")
    return folder
