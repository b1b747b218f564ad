"""The page of an OpenAPI document: plain HTML, no scripts, no outside requests."""

from html import escape
from typing import Any

_STYLE = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}body{max-width:60rem;margin:auto;padding:1rem}"
    "summary{cursor:pointer;padding:.3rem 0}code{font-size:.95em}table{border-collapse:collapse;margin:.5rem 0 1rem}"
    "td,th{text-align:left;padding:.15rem .8rem .15rem 0;border-bottom:1px solid #8884;vertical-align:top}"
)


def docs_page(document: dict[str, Any]) -> str:
    """The HTML text of the document that `openapi.document` makes."""
    schemas = document["components"]["schemas"]
    parts = [
        _operation(path, method, operation, schemas)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    title = f"{document['info']['title']} {document['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1>"
        f'<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>{"".join(parts)}</html>'
    )


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    head = f"<code>{method.upper()} {escape(path)}</code>"
    if "requestBody" not in operation:
        return f"<p>{head}</p>"
    [content] = operation["requestBody"]["content"].values()
    name = content["schema"]["$ref"].rpartition("/")[2]
    schema = schemas[name]
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{' (required)' if field in required else ''}</td>"
        f"<td>{escape(kind_of(facts))}</td></tr>"
        for field, facts in schema.get("properties", {}).items()
    )
    return f"<details><summary>{head}</summary><table><tr><th>field</th><th>type</th></tr>{rows}</table></details>"


def kind_of(facts: dict[str, Any]) -> str:
    """A short word for a field's schema."""
    if "anyOf" in facts:
        return " or ".join(kind_of(each) for each in facts["anyOf"] if each.get("type") != "null")
    if "$ref" in facts:
        return str(facts["$ref"].rpartition("/")[2])
    if "enum" in facts or "const" in facts:
        return ", ".join(map(repr, facts.get("enum", [facts.get("const")])))
    if facts.get("type") == "array":
        return f"list of {kind_of(facts.get('items', {}))}"
    return str(facts.get("type", "any"))
