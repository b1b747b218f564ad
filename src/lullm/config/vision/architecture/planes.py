"""What models with planes of positions share: patches in groups, and the axis by which each pair of a head rotates."""

from collections.abc import Mapping
from typing import Any

from lullm.config.field import MOST_HEAD_DIM, boolean, optional_object, shown
from lullm.config.vision.architecture.shared import MOST_SCALE
from lullm.config.vision.vision import TowerConfig
from lullm.errors import ModelLoadError


def check_patches(
    processor: Mapping[str, Any], defaults: Mapping[str, Any], tower: TowerConfig, factor: int, what: str
) -> None:
    """Raises ModelLoadError: the patches of a processor, and their groups, are not those of the tower."""
    numbers = {"patch_size": tower.patch_size, "merge_size": factor, "temporal_patch_size": max(tower.num_frames, 1)}
    for name, number in numbers.items():
        stated = defaults[name] if processor.get(name) is None else processor[name]
        if stated != number:
            raise ModelLoadError(f"{name} {shown(stated)} of its {what} processor is not its tower's {number}")


def axes_of(text: dict[str, Any], default: tuple[int, int, int], takes_turns: bool) -> tuple[int, ...]:
    """See `VisionConfig`: consecutive pairs of a head, a section for each axis. Or (`takes_turns`) a pair for each axis
    in turn, until one has had as many as its section; then the first takes its turns, too.
    """
    rope = optional_object(text, "rope_scaling") or optional_object(text, "rope_parameters")
    sections = list(default) if rope.get("mrope_section") is None else rope["mrope_section"]
    is_list = isinstance(sections, list) and (len(sections) == 3 if takes_turns else 1 <= len(sections) <= MOST_SCALE)
    if not is_list or not all(type(one) is int and 0 <= one <= MOST_HEAD_DIM for one in sections):
        raise ModelLoadError(f"mrope_section {shown(sections)} is not a list of numbers of pairs")
    if boolean(rope, "mrope_interleaved", takes_turns) != takes_turns:
        raise ModelLoadError(f"mrope_interleaved {shown(rope['mrope_interleaved'])} is not implemented for it")
    if takes_turns:
        turns = ((number % 3, number // 3) for number in range(sum(sections)))
        return tuple(axis if turn < sections[axis] else 0 for axis, turn in turns)
    return tuple(number % 3 for number, size in enumerate(sections) for _ in range(size))
