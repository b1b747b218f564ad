"""Chat templates that would hang or exhaust a process: each must be refused within bounds, at load or when it renders.

`TEXTS` are 129 and more, by the trick they use. `x` is a list of two numbers, `messages` one message, "Hi".
"""

from collections.abc import Iterator

_GROW = "{% set ns = namespace(s='a', l=[1], d={'k': 1}, n=9) %}"


def _doubling(*expressions: str) -> list[str]:
    """Ninety-nine times `ns.s = expression`, printed."""
    return [_GROW + "{% for i in range(99) %}{% set ns.s = " + e + " %}{% endfor %}{{ ns.s }}" for e in expressions]


def _list_doubling(*expressions: str) -> list[str]:
    loop = _GROW + "{% for i in range(99) %}{% set ns.l = "
    return [loop + e + " %}{% endfor %}" + end for e in expressions for end in ("{{ ns.l }}", "{{ ns.l | tojson }}")]


def _ways_to_read_a_nest(*expressions: str) -> list[str]:
    nest = _GROW + "{% set ns.t = [1] %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}"
    return [nest + "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ " + e + " }}" for e in expressions]


GROUPS: dict[str, list[str]] = {
    "one C call makes any size": [
        "{{ 'a' | center(10**10) }}",
        "{{ 'a'.center(10**10) }}",
        "{{ 'a'.ljust(10**10) }}",
        "{{ 'a'.rjust(10**10) }}",
        "{{ 'a'.zfill(10**10) }}",
        "{{ ('a\\t' * 1000).expandtabs(10**7) }}",
        "{{ 'a' * 10**10 }}",
        "{{ 10**10 * 'a' }}",
        "{{ [1] * 10**10 }}",
        "{{ (1, 2) * 10**10 }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%.1000000000f' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ '{:>{w}}'.format(1, w=10**10) }}",
        "{{ '{0:.1000000000f}'.format(1.5) }}",
        "{{ '{a:10000000000}'.format_map({'a': 1}) }}",
        "{{ 'a' | indent(10**10, true) }}",
        "{{ 'a' | indent('b' * 900000 + 'c', true) | indent('b' * 1900000, true) }}",
        "{{ ('a\\n' * 1000) | indent(10**6) }}",
        "{{ [1, 2] | tojson(indent=10**9) }}",
        "{{ [1, 2] | tojson(indent='b' * 1900000) }}",
        "{{ [1, 2, 3, 4] | tojson(separators=('a' * 1900000, ':')) }}",
        "{{ 1 .to_bytes(10**10, 'big') }}",
        "{{ (255).to_bytes(length=10**9, byteorder='big') | string }}",
        "{{ [1] | batch(10**9, 'x') | list }}",
        "{{ [1] | slice(10**9) | list }}",
        "{{ [1] | slice(10**9, 'x') | list | string }}",
        "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
        "{{ ('a' * 100000) | replace('', 'b' * 100000) }}",
        "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
        "{{ ('b' * 100000).join('a' * 100000) }}",
        "{{ ('a' * 100000) | join('b' * 100000) }}",
        "{{ ('a' * 100000) | list | join('b' * 100000) }}",
        "{{ ('a' * 100000) | map('upper') | join('b' * 100000) }}",
        "{{ ('a' * 1000000).translate({97: 'b' * 10000}) }}",
        "{{ ('a b ' * 100000) | wordwrap(1, wrapstring='b' * 100000) }}",
        "{{ ('a' * 10000) | truncate(5, true, 'b' * 1999999, 0) * 2 }}",
        "{{ {'a': 'b' * 1000000} | xmlattr ~ ('b' * 1900000) }}",
        "{{ ('&' * 1000000) | escape }}",
        "{{ ('&' * 1000000) | forceescape }}",
        "{{ ('é' * 1000000) | urlencode }}",
        "{{ ('é' * 1000000) | tojson(ensure_ascii=true) }}",
        "{{ range(10**12) | list }}",
        "{{ range(10**12) | sum }}",
        "{{ range(10**10) | join }}",
        "{{ range(10**10) | map('string') | join }}",
        "{{ range(10**10) | sort }}",
        "{{ range(10**10) | select('odd') | list | length }}",
        "{{ [2 ** 4000] * 1000000 }}",
        "{{ range(100000) | join('b' * 100000) }}",
        "{{ range(10**9) | random ~ range(10**9) | batch(3) | list }}",
        "{{ 10 ** 1000000 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ -7 ** 99999999 }}",
        "{{ (10 ** 1000) ** 1000 ** 3 }}",
        "{{ ('9' * 4000) | int * ('9' * 4000) | int * [1] }}",
        "{{ lipsum(n=999999999) }}",
        "{{ 1.5 | round(10**9) }}{{ 1.5 | round(10**9, 'ceil') }}",
        "{{ strftime_now('%Y' * 100000) }}",
        "{{ cycler(*range(10**9)) }}",
        "{{ joiner('a' * 10**10)() }}",
        "{{ dict([(1, 2)] * 10**9) }}",
        "{{ ('a' * 1900000).encode('utf-16') | string | string }}",
        "{{ ('\\u0130' * 900000).lower().encode('unicode_escape') | string }}",
        "{{ ('x' * 1000000) | list | pprint }}",
        "{{ (('x' * 1000) | list) * 100 * 100 | groupby('a') }}",
    ],
    "folded while compiling": [
        "{{ 'a' | center(999999999) }}",
        "{% if false %}{{ 'a' | center(999999999) }}{% endif %}{{ 'a' | center(999999999) }}",
        "{% set x = 'a' | center(999999999) %}{{ x }}",
        "{{ ['a' | center(999999999)] | first }}",
        "{{ 'a' | center(999999999) | length ~ ('a' * 10**10) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%d' | format(1) | center(10**10) }}",
        "{{ ('a' | center(99999999)) if true else 'b' }}",
        "{{ {'a': 'b' | center(999999999)}['a'] }}",
        "{{ 'a' | indent(10**10) | indent(10**10, first=true) }}",
        "{{ 'a' | batch(10**9, 'x') | list | length ~ 1 * 'a' * 10**10 }}",
    ],
    "strings that double": _doubling(
        "ns.s ~ ns.s",
        "ns.s + ns.s",
        "ns.s * 2",
        "ns.s | replace('a', 'aa')",
        "ns.s.replace('a', 'aa')",
        "ns.s.replace('', 'aa')",
        "ns.s.join([ns.s, ns.s])",
        "[ns.s, ns.s] | join",
        "[ns.s, ns.s] | join(ns.s)",
        "[ns.s, ns.s] | string",
        "[ns.s, ns.s] | tojson",
        "[ns.s] | tojson(indent=8) ~ ns.s",
        "(ns.s, ns.s) | string",
        "{'a': ns.s, 'b': ns.s} | tojson",
        "ns.s | center(ns.s | length * 2)",
        "'%s%s' | format(ns.s, ns.s)",
        "'%s%s' % (ns.s, ns.s)",
        "'{}{}'.format(ns.s, ns.s)",
        "'{0}{0}'.format(ns.s)",
        "ns.s | indent(ns.s | length, true)",
        "[ns.s, ns.s] | map('upper') | join",
        "[ns.s] | map('replace', 'a', 'aa') | first | lower",
        "(ns.s | list + ns.s | list) | join",
        "('b' ~ ns.s) | list | join('aa')",
        "(ns.s ~ ns.s ~ '&') | forceescape",
        "ns.s | tojson | tojson",
        "ns.s | tojson | string | tojson ~ ns.s",
    ),
    "numbers that grow": [
        _GROW + "{% for i in range(99) %}{% set ns.n = " + e + " %}{% endfor %}{{ ns.n }}"
        for e in ("ns.n * ns.n", "ns.n ** 2", "ns.n ** ns.n", "2 ** ns.n", "(ns.n ~ ns.n) | int * ns.n", "ns.n ** 1.5")
    ],
    "blocks that double": [
        _GROW + "{% for i in range(99) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
        _GROW + "{% for i in range(99) %}{% set ns.s | upper %}{{ ns.s * 2 }}{% endset %}{% endfor %}",
        "{% macro f(s) %}{{ s }}{{ s }}{% endmacro %}" + _GROW
        + "{% for i in range(99) %}{% set ns.s = f(ns.s) %}{% endfor %}",
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}" + _GROW
        + "{% for i in range(99) %}{% set ns.s %}{% call f() %}{{ ns.s }}{% endcall %}{% endset %}{% endfor %}",
        _GROW + "{% for i in range(99) %}{% set ns.s %}{% filter replace('a', 'aa') %}{{ ns.s }}{% endfilter %}"
        "{% endset %}{% endfor %}",
        "{% set x = 'a' * 999999 %}{% for i in range(999) %}{{ x }}{% endfor %}",
        "{% set x = 'a' * 999999 %}{% set y %}{% for i in range(9999999) %}{{ x }}{% endfor %}{% endset %}{{ y }}",
        "{% set y %}{% for i in range(9999999) %}" + "text " * 2000 + "{% endfor %}{% endset %}{{ y }}",
        "{% macro f() %}{% for i in range(9999999) %}" + "text " * 2000 + "{% endfor %}{% endmacro %}{{ f() }}",
    ],
    "lists that nest": _list_doubling(
        "[ns.l, ns.l]",
        "(ns.l, ns.l)",
        "{'a': ns.l, 'b': ns.l}",
        "{'a': [ns.l], 'b': [[ns.l]]}",
        "[ns.l] + [ns.l]",
        "[ns.l] * 2",
        "dict(a=ns.l, b=ns.l)",
        "[ns.l, ns.l] | list",
        "[ns.l, ns.l] | batch(1) | list",
        "ns.l + ns.l",
    ),
    "ways to read a nest": _ways_to_read_a_nest(
        "ns.l",
        "ns.l | string",
        "ns.l ~ ''",
        "ns.l | tojson",
        "ns.l | pprint",
        "ns.l | join",
        "ns.l | length ~ ns.l | upper",
        "ns.l == ns.t",
        "ns.l != ns.t",
        "ns.l < ns.t",
        "ns.l in [ns.t]",
        "[ns.t] | select('equalto', ns.l) | list | length",
        "[ns.l, ns.t] | sort | length",
        "[ns.l, ns.t] | unique | list | length",
        "[ns.l, ns.t] | max | length",
        "[ns.t].index(ns.l)",
        "[ns.t].count(ns.l)",
        "ns.l | urlencode",
        "ns.l | e",
        "'%s' % (ns.l,)",
        "'{}'.format(ns.l)",
        "ns",
        "[ns]",
    )
    + [
        "".join(f"{{% set a{i + 1} = [a{i}, a{i}] %}}" for i in range(60)).replace("[a0, a0]", "[1]") + "{{ a60 }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}{{ varargs }}{% endif %}{% endmacro %}"
        "{{ f(60, 1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1, a=kwargs, b=kwargs) }}{% else %}{{ kwargs }}{% endif %}{% endmacro %}"
        "{{ f(60, c=1) }}",
        "{% set ns = namespace() %}{% set ns.a = [ns, ns] %}{{ ns.a }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = namespace(a=ns.l, b=ns.l) %}{% endfor %}"
        "{{ ns.l }}",
    ],
    "loops without end": [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{{ range(99999) | sum }}{% endfor %}",
        "{% set x = 'abcdefghij' * 500 %}{% for a in x %}{% for b in x %}{% for c in x if false %}{% endfor %}"
        "{% endfor %}{% endfor %}",
        "{% for i in range(9999) | map('string') %}{% for j in range(9999) | map('string') %}{% endfor %}{% endfor %}",
        "{% for a in x recursive %}{{ loop(x) }}{% endfor %}",
        "{% for a in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{% if n %}{% call f(n - 1) %}{% endcall %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% block b %}{{ self.b() }}{% endblock %}",
        "{% block b %}{% if messages %}{{ self.b() }}{{ self.b() }}{% endif %}{% endblock %}",
        "{% set y = 'a' * 999999 %}{% for i in range(9999999) %}{% if y[::-1] == y %}{% endif %}{% endfor %}",
        "{% set y = 'a' * 999999 %}{% for i in range(9999999) %}{% if 'ab' in y %}{% endif %}{% endfor %}",
        "{% set y = 'a' * 999999 %}{% set z = y ~ 'b' %}{% for i in range(9999999) %}{% if y ~ 'b' == z %}{% endif %}"
        "{% endfor %}",
        "{% set y = range(99999) | list %}{% for i in range(9999999) %}{% if y == y[:] %}{% endif %}{% endfor %}",
        "{% set y = 'a' * 999999 %}{% for i in range(9999999) %}{% set z = y.upper() %}{% endfor %}",
        "{% set y = 'a' * 999999 %}{% for i in range(9999999) %}{% set z = y | title %}{% endfor %}",
        "{% set y = 'a,' * 499999 %}{% for i in range(9999999) %}{% set z = y.split(',') %}{% endfor %}",
        "{% set y = ['a' * 999999] %}{% for i in range(9999999) %}{% set z = y | map('upper') | list %}{% endfor %}",
        "{% set y = 'a' * 999999 %}{% for i in range(9999999) %}{% set z = [y] | tojson %}{% endfor %}",
        "{% set y = 'a' * 999999 %}{% for i in range(9999999) %}{{ (y ~ i) is in [y ~ 1] or '' }}{% endfor %}",
        "{% set ns = namespace(g=[1]) %}{% for i in range(9999999) %}{% set ns.g = ns.g | map('string') %}{% endfor %}"
        "{{ ns.g | list }}",
    ],
    "the text of the template itself": [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "[" * 5000 + "]" * 5000 + " }}",
        "{{ " + "-" * 5000 + "1 }}",
        "{{ " + "not " * 5000 + "1 }}",
        "{{ " + "1 + " * 20000 + "1 }}",
        "{{ " + "1 ~ " * 500 + "1 }}{{ 'a' * 10**10 }}",
        "{{ a" + ".b" * 20000 + " }}",
        "{{ a" + "[0]" * 20000 + " }}",
        "{{ 'a'" + " | upper" * 20000 + " }}",
        "{{ " + "1 if a else " * 5000 + "1 }}",
        "{% if a %}" * 500 + "{% endif %}" * 500,
        "{% for i in x %}" * 30 + "{% endfor %}" * 30,
        "{% macro f() %}" * 500 + "{% endmacro %}" * 500,
        "{% set x = " + "{'a': " * 3000 + "1" + "}" * 3000 + " %}",
        "{{ " + "9" * 100_000 + " }}",
        "{{ 1e" + "9" * 1000 + " | int }}",
        "{{ x }}" * 150_000,
        "{% if x %}a{% endif %}" * 50_000,
        "{{ '" + "a" * 1_000_000,
        "{# " + "a" * 1_000_000,
        "{%" + " " * 1_000_000,
        "{% raw %}" * 100_000,
    ],
    "ways out of the sandbox": [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ messages[0].pop('role') }}",
        "{{ (messages | attr('__class__')).mro() }}",
        "{{ raise_exception.__globals__['jinja2'].x }}",
        "{{ self.__init__.__globals__.__builtins__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ namespace.__init__.__globals__['sys'].exit() }}",
        "{{ range.__self__.shared }}{{ range.__self__.filters.clear() }}",
        "{{ strftime_now.__code__.co_code.x }}",
        "{{ '{0.__class__.__mro__}'.format(messages).x.y }}",
        "{{ ().__class__.__base__.__subclasses__()[0] }}",
        "{{ ('' | attr('format')).__globals__.x }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.x }}",
        "{% from 'os' import path %}",
        "{% extends '/etc/passwd' %}",
        "{% for k in messages[0].keys() %}{{ messages[0].clear() }}{% endfor %}",
        "{{ messages.sort(key=raise_exception) }}",
        "{{ dict.fromkeys(range(10**9)) }}",
        "{{ x.extend(x) }}",
    ],
}  # fmt: skip


def texts() -> Iterator[tuple[str, str]]:
    """Each template, with a name for it."""
    for group, sources in GROUPS.items():
        for number, source in enumerate(sources):
            yield f"{group} {number}", source
