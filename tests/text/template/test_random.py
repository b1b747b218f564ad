"""Random templates over what may run in this process: each ends within milliseconds, however it nests."""

import random
import time

import pytest

from lullm.text.template.failure import TemplateFailure
from lullm.text.template.sandbox import Sandbox

STRINGS = [
    "(S ~ S)", "(S + S)", "(S * N)", "(L | join(S))", "(S | upper)", "(S | title)", "(S | escape)", "(S | tojson)",
    "(S | replace(S, S))", "S.replace(S, S)", "(L | tojson)", "(L | tojson(indent=8))", "(L | string)", "S[::-1]",
    "S.swapcase()", "(S | indent(16, true))", "S.join(L | map('string'))", "f(S, L)", "(S if S in S else S)",
    "(L | first | string)", "(L | map('string') | sort | join)", "(L ~ S)", "((L == L) ~ S)", "(L | max | string)",
]  # fmt: skip
LISTS = [
    "[L, L]", "[S, L]", "(L + L)", "(L * N)", "(S | list)", "S.split(S)", "(dict(a=L, b=L).items() | list)",
    "({'a': L, 'b': S} | dictsort)", "(L | reverse | list)", "(L | map('list') | list)", "L[::-1]", "(range(N) | list)",
    "(L | select('equalto', L) | list)", "(L | select('in', L) | list)", "(L | map('tojson') | list)",
    "(L | map('replace', 'a', S) | list)", "(L | map('join', S) | list)", "(L | unique | list)", "[ns.l, ns.l]",
]  # fmt: skip
NUMBERS = ["(N + N)", "(N * N)", "(S | length)", "(L | length)", "S.count(S)"]
LEAVES = {"S": ["ns.s", "'ab'", "m", "'&'"], "L": ["ns.l", "[1]", "['a', 'b']"], "N": ["2", "ns.n", "100", "1000"]}
STATEMENTS = [
    "{% set ns.s = S %}", "{% set ns.l = L %}", "{% set ns.n = N %}", "{{ S }}", "{{ L }}",
    "{% for u in range(999) %}BB{% endfor %}", "{% for u in L %}BB{% endfor %}",
    "{% if S in S %}B{% else %}B{% endif %}", "{% set ns.s %}B{{ S }}{{ ns.s }}{% endset %}",
]  # fmt: skip
START = "{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{% set ns = namespace(s='ab', l=[1, 'c'], n=7) %}"
SHAPES = {"S": STRINGS, "L": LISTS, "N": NUMBERS, "B": STATEMENTS}


def some(rng: random.Random, kind: str, depth: int) -> str:
    """A random text of a kind: the capital letters of a shape stand for texts of their kinds."""
    if kind in LEAVES and (depth <= 0 or rng.random() < 0.2):
        return rng.choice(LEAVES[kind])
    shape = rng.choice(SHAPES[kind][:5] if depth <= 0 else SHAPES[kind])
    inner = 3 if kind == "B" and depth <= 0 else depth - 1
    return "".join(some(rng, char, inner) if char in SHAPES else char for char in shape)


@pytest.mark.parametrize("seed", range(4))
def test_random_templates_end_soon(seed):
    rng = random.Random(seed)
    sandbox = Sandbox(only_bounded=True)
    num_bounded = 0
    for _ in range(60):
        source = START + "{% for k in range(999) %}" + some(rng, "B", 3) + some(rng, "B", 3) + "{% endfor %}"
        template = sandbox.compile_bounded(source)
        assert template is not None, source
        began = time.process_time()
        try:
            sandbox.render(template, {"m": "Hi & " * 50}, 15_000, 1_100_000)
        except TemplateFailure as failure:
            num_bounded += "steps" in str(failure) or "grew" in str(failure)
        assert time.process_time() - began < 0.5, source
    assert num_bounded > 20
