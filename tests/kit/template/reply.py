"""Chat templates that print calls and thoughts, each in a style of its own, written for these tests."""

_TURNS = """
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<a>' }}
        {%- if m.reasoning_content %}{{- THINK_OPEN + m.reasoning_content + THINK_CLOSE }}{%- endif %}
        {{- m.content or '' }}CALLS{{- '</a>\\n' }}
    {%- else %}{{- '<' + m.role + '>' + m.content + '</' + m.role + '>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<a>' }}{%- endif %}"""


def template(calls: str, think_open: str = "(thinks) ", think_close: str = " (speaks) ") -> str:
    """A template whose calls are printed by `calls`, a piece of Jinja over `m.tool_calls`."""
    text = _TURNS.replace("CALLS", calls)
    return text.replace("THINK_OPEN", repr(think_open)).replace("THINK_CLOSE", repr(think_close))


_EACH = "{%- for c in m.tool_calls or [] %}{%- set f = c.function %}"

STYLES = {
    "an object": template(
        _EACH + "{{- '<CALL>' ~ {'fn': f.name, 'with': f.arguments} | tojson ~ '</CALL>' }}{%- endfor %}"
    ),
    "a list of objects": template(
        "{%- if m.tool_calls %}{{- 'TOOLS: [' }}"
        + _EACH
        + "{{- '{\"name\": \"' ~ f.name ~ '\", \"arguments\": ' ~ f.arguments | tojson ~ '}' }}"
        "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- '] END' }}{%- endif %}"
    ),
    "a name before JSON, in a section": template(
        "{%- if m.tool_calls %}{{- '<<calls>>' }}"
        + _EACH
        + "{{- '<<call>>' ~ f.name ~ '<<with>>' ~ f.arguments | tojson ~ '<<done>>' }}{%- endfor %}"
        "{{- '<<end>>' }}{%- endif %}"
    ),
    "tags": template(
        _EACH + "{{- '[[do ' ~ f.name ~ ']]\\n' }}{%- for k, v in f.arguments.items() %}{{- '[[arg ' ~ k ~ ']]\\n' ~ "
        "(v if v is string else v | tojson) ~ '\\n[[/arg]]\\n' }}{%- endfor %}{{- '[[/do]]' }}{%- endfor %}"
    ),
    "keywords": template(
        "{%- if m.tool_calls %}{{- 'RUN[' }}" + _EACH + "{{- f.name ~ '(' }}{%- for k, v in f.arguments.items() %}"
        "{{- k ~ '=' ~ v | tojson }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ')' }}"
        "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ']NUR' }}{%- endif %}"
    ),
    "keywords in quotes of their own": template(
        _EACH + "{{- '<go>' ~ f.name ~ '{' }}{%- for k, v in f.arguments.items() %}{{- k ~ ':' ~ "
        "('<q>' ~ v ~ '<q>' if v is string else v | tojson) }}{%- if not loop.last %}{{- ',' }}{%- endif %}"
        "{%- endfor %}{{- '}<og>' }}{%- endfor %}"
    ),
}
