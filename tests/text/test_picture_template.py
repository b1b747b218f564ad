"""Chat templates that show pictures, and those that take contents as lists of parts only."""

import pytest
from kit.vision.checkpoint import IDEFICS3_TEMPLATE, INTERNVL_TEMPLATE, LLAVA_TEMPLATE

from lullm.errors import InvalidRequestError
from lullm.text.chat_template import ChatTemplate

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
EITHER = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ '[picture]' if part.type == 'image' else part.text }}{% endfor %}{% endif %}"
    "{% endfor %}"
)
ALTERNATING = EITHER.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if loop.previtem and loop.previtem.role == m.role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}",
    1,
)
PICTURE = {"type": "image"}


def text(words):
    return {"type": "text", "text": words}


def template(source):
    made = ChatTemplate(source, {})
    made.try_out()
    return made


@pytest.mark.parametrize(
    ("source", "shows", "plain", "seen"),
    [
        (PLAIN, False, "<user>hello", None),
        (EITHER, True, "<user>hello", "<user>[picture]hello"),
        (LLAVA_TEMPLATE, True, "USER: hello ", "USER: <image>\nhello "),
        (IDEFICS3_TEMPLATE, True, "<|im_start|>User: hello", "<|im_start|>User:<image>hello"),
        (INTERNVL_TEMPLATE, True, "<|im_start|>user\nhello", "<|im_start|>user\n<image>\nhello"),
    ],
)
def test_what_a_template_prints(source, shows, plain, seen):
    made = template(source)
    assert made.shows_pictures is shows
    for content in ("hello", [text("hello")]):
        rendered = made.render([{"role": "user", "content": content}], add_generation_prompt=False)
        assert rendered.startswith(plain)
    if seen is not None:
        content = [PICTURE, text("hello")]
        assert made.render([{"role": "user", "content": content}], add_generation_prompt=False).startswith(seen)
        assert content == [PICTURE, text("hello")]


def test_turns_with_pictures_are_joined():
    made = template(ALTERNATING)
    turns = [{"role": "user", "content": [PICTURE, text("a")]}, {"role": "user", "content": "b"}]
    assert made.render(turns) == "<user>[picture]a\n\nb"
    assert made.render(list(reversed(turns))) == "<user>b\n\n[picture]a"


@pytest.mark.parametrize(
    "part", [{"type": "video", "video": "x"}, {"type": "image", "image": "x"}, {"type": "image_url"}]
)
def test_other_parts_are_refused(part):
    with pytest.raises(InvalidRequestError, match="are not supported"):
        template(EITHER).render([{"role": "user", "content": [part]}])
