"""SamplingParams: what is refused, and what is normalised."""

import math
import pickle

import pytest

from lullm.errors import InvalidRequestError, UnsupportedError
from lullm.types.sampling_params import SamplingParams
from lullm.types.vllm_argument import VLLM_SAMPLING


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", 1.5), ("n", True), ("n", 10**6), ("best_of", 0),
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", "1"),
        ("temperature", 10**400),
        ("top_p", 0.0), ("top_p", 1.1), ("top_k", -2), ("top_k", 0.5), ("min_p", 2),
        ("presence_penalty", 2.1), ("frequency_penalty", -3), ("repetition_penalty", 0),
        ("max_tokens", 0), ("min_tokens", -1), ("logprobs", -2), ("prompt_logprobs", 1.0), ("seed", "x"),
        ("stop", [""]), ("stop", [1]), ("stop", ["x" * 1025]), ("stop", ["x"] * 65), ("stop", {"a": 1}),
        ("stop_token_ids", ["1"]), ("stop_token_ids", 3), ("allowed_token_ids", []), ("allowed_token_ids", [1.0]),
        ("logit_bias", {"x": 1}), ("logit_bias", {1: 101}), ("logit_bias", {1: math.nan}),
        ("logit_bias", {math.inf: 1}), ("logit_bias", {1: True}), ("logit_bias", {1: 0, "y": 1}), ("logit_bias", [1]),
        ("bad_words", "x"),
        ("ignore_eos", 1), ("skip_special_tokens", None), ("output_kind", "delta"),
        ("detokenize", None), ("skip_reading_prefix_cache", 1),
    ],
)  # fmt: skip
def test_refused(field, value):
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(**{field: value})
    assert error.value.param == field
    assert field in str(error.value)


def test_a_number_that_python_does_not_write_is_refused_all_the_same():
    for fields in ({"temperature": 10**5000}, {"n": 10**5000}, {"top_k": -(10**5000)}):
        with pytest.raises(InvalidRequestError, match="got a number too large for it"):
            SamplingParams(**fields)


@pytest.mark.parametrize("field", ["max_tokens", "top_k", "truncate_prompt_tokens", "logprobs"])
def test_an_integer_without_a_bound_of_its_own_has_64_bits(field):
    """A histogram of `max_tokens` failed at 10**400, and its request with it: 500."""
    assert getattr(SamplingParams(**{field: 10**400}), field) == 2**63 - 1


def test_fields_that_do_not_fit_each_other():
    with pytest.raises(InvalidRequestError, match="best_of"):
        SamplingParams(n=3, best_of=2)
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)
    with pytest.raises(InvalidRequestError, match="detokenize=True"):
        SamplingParams(stop="x", detokenize=False)


@pytest.mark.parametrize("name", sorted(VLLM_SAMPLING))
def test_vllms_other_arguments_pass_or_are_refused(name):
    """Most ended in "unexpected keyword argument"; lm-evaluation-harness sends `spaces_between_special_tokens`."""
    argument, wish = VLLM_SAMPLING[name], {"type": "something"}
    for nothing in (None, argument.default):
        assert SamplingParams(2, **{name: nothing}) == SamplingParams(n=2)
    if argument.passes:
        assert SamplingParams(2, **{name: wish}) == SamplingParams(n=2)
    else:
        with pytest.raises(UnsupportedError) as error:
            SamplingParams(**{name: wish})
        assert str(error.value) == f"{name}={wish!r} is not supported: {argument.advice}"
    assert name not in SamplingParams.__slots__


def test_a_name_that_nobody_knows():
    with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
        SamplingParams(temprature=1)


def test_normalised():
    params = SamplingParams(stop="x", stop_token_ids=[3, 3, 4], logit_bias={"7": 1}, temperature=0)
    assert params.stop == ("x",)
    assert params.stop_token_ids == (3, 4)
    assert params.logit_bias == {7: 1.0}
    assert params.is_greedy
    assert SamplingParams(best_of=4).num_sequences == 4
    assert params.replace(stop=None).stop == ()


def test_errors_and_params_pickle():
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(n=0)
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.param) == (str(error.value), "n")
    assert pickle.loads(pickle.dumps(SamplingParams(n=2, stop="x"))) == SamplingParams(n=2, stop="x")
