"""vLLM's options: each passes with what asks for nothing, and is refused with what to do instead otherwise."""

import pytest

from lullm.config.engine import EngineConfig
from lullm.config.option.option import options_of
from lullm.config.option.vllm import ELSEWHERE, VLLM_OPTIONS
from lullm.errors import ConfigError, UnsupportedError

OWN = {option.name for option in options_of(EngineConfig)}


def test_no_option_stands_in_both():
    assert not OWN & VLLM_OPTIONS.keys()


@pytest.mark.parametrize("name", sorted(VLLM_OPTIONS))
def test_each_passes_or_is_refused(name):
    option = VLLM_OPTIONS[name]
    for nothing in (None, option.default):
        assert EngineConfig.from_options({name: nothing}) == EngineConfig()
    wish = {"type": "something"}
    if option.passes:
        assert EngineConfig.from_options({name: wish}) == EngineConfig()
    else:
        with pytest.raises(UnsupportedError) as caught:
            EngineConfig.from_options({name: wish})
        assert str(caught.value) == f"{name}={wish!r} is not supported: {option.advice}"


def test_the_words_of_other_libraries():
    """`n_ctx` proposed nothing, and `model_path` another option."""
    assert set(ELSEWHERE.values()) <= OWN and not ELSEWHERE.keys() & (OWN | VLLM_OPTIONS.keys())
    with pytest.raises(
        ConfigError, match=r"unknown option 'model_path', 'n_ctx'; did you mean model\?; did you mean max_"
    ):
        EngineConfig.from_options({"model_path": "x.gguf", "n_ctx": 512})


def test_one_is_not_true():
    """`nnodes=True` is no number, and `headless=0` no switch; neither asks for nothing."""
    with pytest.raises(UnsupportedError):
        EngineConfig.from_options({"nnodes": True})
