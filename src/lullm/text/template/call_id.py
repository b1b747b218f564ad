"""Ids of calls that a chat template accepts: Mistral's accept only nine letters and digits."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

SHORT, LONG = "call00000", "call_0123456789"
"""An id that every template accepts, and one as clients send them."""

_SHORT_FORM = re.compile(r"[A-Za-z0-9]{9}")


def with_short_ids(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A message with short ids. Equal ids become equal, so that results find their calls, and prefixes stay cached."""
    changed = dict(turn)
    if isinstance(turn.get("tool_call_id"), str):
        changed["tool_call_id"] = _short(turn["tool_call_id"])
    if turn.get("tool_calls"):
        changed["tool_calls"] = [
            {**call, "id": _short(call["id"])} if isinstance(call.get("id"), str) else call
            for call in turn["tool_calls"]
        ]
    return changed


def _short(call_id: str) -> str:
    if _SHORT_FORM.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:9]
