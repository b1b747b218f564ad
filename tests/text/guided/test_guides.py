"""What is checked at the engine's door, and where."""

import pytest

from lullm.errors import InvalidRequestError
from lullm.text.guided.guides import GuideMaker
from lullm.text.template.failure import WouldBlock
from lullm.text.tokenizer import Tokenizer
from lullm.types.guided.params import StructuredOutputsParams
from lullm.weights.folder import DEMO_FOLDER


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_folder(DEMO_FOLDER)


def test_a_new_form_leaves_the_event_loop(tokenizer):
    """However short: `((a{100}){100}){100}` takes 0.3 s. One that is known does not."""
    guides = GuideMaker(tokenizer, (0,), 2048)
    known, new = StructuredOutputsParams(regex="ab"), StructuredOutputsParams(regex="((a{100}){100}){100}")
    with pytest.raises(WouldBlock):
        guides.make(known, may_block=False)
    guide = guides.make(known)
    assert guides.make(known, may_block=False) is guide
    with pytest.raises(WouldBlock):
        guides.make(new, may_block=False)


def test_without_an_end_of_sequence_token(tokenizer):
    with pytest.raises(InvalidRequestError, match="end-of-sequence"):
        GuideMaker(tokenizer, (), 2048).make(StructuredOutputsParams(regex="ab"))
