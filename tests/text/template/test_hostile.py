"""Hostile templates end within bounds, with the right error, and leave messages and engine as they were."""

import copy
import time

import pytest
from kit.template.hostile import texts

from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.text.chat_template import ChatTemplate
from lullm.text.template.process import ProcessBounds
from lullm.units import MIB

USER = [{"role": "user", "content": "Hi"}]
TEXTS = dict(texts())
BOUNDS = ProcessBounds(cpu_s=0.06, memory_bytes=192 * MIB, max_size=2_000_000)


def test_there_are_many():
    assert len(TEXTS) >= 129 and len(set(TEXTS.values())) == len(TEXTS)


@pytest.mark.parametrize("name", TEXTS)
def test_each_ends_with_an_error(name):
    messages = copy.deepcopy(USER)
    template = None
    began = time.process_time()
    try:
        with pytest.raises((ModelLoadError, InvalidRequestError), match="template"):
            template = ChatTemplate(TEXTS[name], {}, BOUNDS)
            print(repr(template.render(messages, x=[1, 2]))[:200])
    finally:
        if template is not None:
            template.close()
    assert messages == USER
    assert time.process_time() - began < 5, "time of this process, not of the one that can be killed"
