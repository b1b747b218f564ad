"""Tekken: the tokenizer file of Mistral's own releases (`tekken.json`), as a backend of the library.

The file holds tokens in the order of their joining, as bytes (`ranks`), and the regular expression that cuts a text
into words. Special tokens have the first ids.
"""

import base64
import binascii
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Backend

from lullm.config.field import boolean, positive_int
from lullm.config.json_file import read_object
from lullm.errors import ModelLoadError
from lullm.text.token_bytes import check_lengths
from lullm.text.vocabulary.added import surround
from lullm.text.vocabulary.cut import Cut
from lullm.text.vocabulary.ranks import ranked
from lullm.text.vocabulary.tekken_template import tekken_template
from lullm.units import MIB

FILE = "tekken.json"
_LARGEST = 256 * MIB
_MOST_TOKENS = 1 << 24
_MOST_SPECIAL = 1 << 16  # each gets a name, used or not; Mistral's files have 1000
_FIRST_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""The special tokens of files that list none."""
_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def read_tekken(path: Path, config: dict[str, Any]) -> tuple[Backend, dict[str, str], dict[str, str]]:
    """The backend of `path`, a tekken.json, special tokens by role, and its chat template.

    `config`: of tokenizer_config.json.

    Raises:
        ModelLoadError: the file is damaged.
    """
    data = read_object(path, _LARGEST)
    try:
        settings = data["config"]
        num_special = positive_int(settings, "default_num_special_tokens", most=_MOST_SPECIAL)
        size = positive_int(settings, "default_vocab_size", most=_MOST_TOKENS) - num_special
        cut, stored = Cut((settings["pattern"],)), data["vocab"][: max(size, 0)]
        Regex(settings["pattern"])
        words = [base64.b64decode(entry["token_bytes"], validate=True) for entry in stored]
        special = _special(data.get("special_tokens"), num_special)
        check_lengths(words, "its vocabulary")
        template = tekken_template(data, special)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, binascii.Error) as error:
        raise ModelLoadError(f"{path} is damaged: {error!r}") from None
    except Exception as error:  # the library's, of a regular expression
        raise ModelLoadError(f"{path}: the pattern is no regular expression: {error}") from None
    if len(words) != size or words[:256] != [bytes([byte]) for byte in range(256)] or len(set(words)) != size:
        raise ModelLoadError(f"{path} is damaged: its vocabulary must be {size} different tokens, the 256 bytes first")
    roles = {role: token for role, token in _ROLES.items() if token in special}
    ids = {word: number + num_special for number, word in enumerate(words)}
    added = {number: AddedToken(token, special=True, normalized=False) for number, token in enumerate(special)}
    backend = ranked(ids, added, cut)
    starts_with_bos = "bos_token" in roles and boolean(config, "add_bos_token", True)
    surround(backend, [roles["bos_token"] if starts_with_bos else None], [], has_bytes=True)
    return backend, roles, {} if template is None else {"default": template}


def _special(listed: Any, count: int) -> list[str]:
    """Special tokens by id; ids without a token are filled up."""
    names = [f"<SPECIAL_{number}>" for number in range(count)]
    entries = listed or [{"rank": rank, "token_str": token} for rank, token in enumerate(_FIRST_SPECIAL[:count])]
    for entry in entries:
        names[entry["rank"]] = str(entry["token_str"])
    if len(set(names)) != count:
        raise ValueError("two special tokens have one name")
    return names
