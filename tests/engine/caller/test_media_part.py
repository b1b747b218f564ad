"""Parts of conversations give way to places; all else stays as it was given."""

import pytest

from lullm.engine.caller.media_part import with_places
from lullm.types.request import Conversation

PLACE = {"type": "image"}


def place_of(part):
    return PLACE if part.get("type") == "picture" else None


def test_parts_give_way():
    text = {"type": "text", "text": "a"}
    plain = {"role": "system", "content": "b"}
    given = Conversation([plain, {"role": "user", "content": ({"type": "picture"}, text, "c")}])
    assert with_places(given, place_of).messages == [plain, {"role": "user", "content": [PLACE, text, "c"]}]
    assert given.messages[1]["content"][0] == {"type": "picture"}, "the caller's own is not changed"


@pytest.mark.parametrize("messages", ["text", 3, None, [None, "a", {"content": [1, {}]}], [{"role": "user"}]], ids=str)
def test_what_has_none_is_the_same_object(messages):
    given = Conversation(messages)
    assert with_places(given, place_of) is given
