"""Tekken: the tokenizer file of Mistral's own releases (`tekken.json`), as a backend of the library.

The file holds tokens in the order of their joining, as bytes, and the regular expression that cuts a text into words.
Special tokens have the first ids. A word of the vocabulary is one token; others are joined pair by pair, the pair that
makes the earliest token first. Computing these pairs of 130,000 tokens takes about a second.
"""

import base64
import binascii
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from lullm.config.field import boolean, positive_int
from lullm.config.json_file import read_object
from lullm.errors import ModelLoadError
from lullm.text.token_bytes import BYTE_CHARACTERS, check_lengths
from lullm.text.vocabulary.added import surround
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
"""Of files that list none."""
_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def read_tekken(folder: Path, config: dict[str, Any]) -> tuple[Backend, dict[str, str], dict[str, str]]:
    """The backend of `folder/tekken.json`, special tokens by role, and its chat template.

    `config`: of tokenizer_config.json.

    Raises:
        ModelLoadError: the file is damaged.
    """
    path = folder / FILE
    data = read_object(path, _LARGEST)
    try:
        settings = data["config"]
        num_special = positive_int(settings, "default_num_special_tokens", most=_MOST_SPECIAL)
        size = positive_int(settings, "default_vocab_size", most=_MOST_TOKENS) - num_special
        pattern, stored = Regex(settings["pattern"]), data["vocab"][: max(size, 0)]
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
    backend = _backend(words, special, pattern, boolean(config, "add_bos_token", True))
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


def _backend(words: list[bytes], special: list[str], pattern: Regex, starts_with_bos: bool) -> Backend:
    spelled = ["".join(BYTE_CHARACTERS[byte] for byte in word) for word in words]
    vocab = {token: number + len(special) for number, token in enumerate(spelled)}
    # A word that is spelled like a special token is dropped: the library has one id per spelling.
    vocab |= {token: number for number, token in enumerate(special)}
    backend = Backend(BPE(vocab=vocab, merges=_merges(words, spelled, set(special)), ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    surround(backend, "<s>" if starts_with_bos and "<s>" in special else None, None, has_bytes=True)
    return backend


def _merges(words: list[bytes], spelled: list[str], hidden: set[str]) -> list[tuple[str, str]]:
    """All pairs of tokens that make a token, in the order of the result, then of the parts."""
    ranks = {word: rank for rank, word in enumerate(words)}
    found: list[tuple[str, str]] = []
    for word in words[256:]:
        pairs = [(ranks.get(word[:at]), ranks.get(word[at:])) for at in range(1, len(word))]
        known = sorted((left, right) for left, right in pairs if left is not None and right is not None)
        found += [(spelled[left], spelled[right]) for left, right in known]
    return [pair for pair in found if not hidden.intersection((*pair, pair[0] + pair[1]))]
