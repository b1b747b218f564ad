"""Filling in the middle: the form is found by the tokenizer's tokens, and code that spells them stays text."""

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from lullm.errors import InvalidRequestError
from lullm.text.template.infill import FORMS
from lullm.text.tokenizer import Tokenizer


def tokenizer_with(*tokens, bos=None):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in tokens if token])
    if bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return Tokenizer(backend)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.before)
def test_every_form(form):
    tokenizer = tokenizer_with(form.before, form.between, form.behind, form.end)
    ids = tokenizer.encode_infill("def f(x):", "return y")
    shown = tokenizer.decode(ids, skip_special_tokens=False)
    assert shown == f"{form.before}def f(x):{form.between}return y{form.behind}"
    ends = [] if form.end is None else [tokenizer.backend.token_to_id(form.end)]
    assert list(tokenizer.infill().end) == ends


def test_a_prompt_begins_as_every_prompt_of_the_model():
    form = FORMS[-1]
    tokenizer = tokenizer_with("<s>", form.before, form.between, form.behind, bos="<s>")
    assert tokenizer.decode(tokenizer.encode_infill("a", "b"), skip_special_tokens=False).startswith(
        "<s>" + form.before
    )


def test_tokens_that_the_code_spells_are_text():
    form = FORMS[0]
    tokenizer = tokenizer_with(form.before, form.between, form.behind)
    ids = tokenizer.encode_infill(f"print('{form.between}')", "")
    assert ids.count(tokenizer.backend.token_to_id(form.between)) == 1


def test_a_model_without_such_tokens():
    with pytest.raises(InvalidRequestError, match="no tokens for filling in") as info:
        tokenizer_with("<|fim_prefix|>", "<|fim_suffix|>").encode_infill("a", "b")
    assert info.value.param == "suffix"
