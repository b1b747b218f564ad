"""The tables of docs/endpoints.md: endpoints, the fields of their bodies, the codes of errors, the server's flags."""

import ast
import re
from pathlib import Path

from docs.tables import table
from fastapi.routing import APIRoute

import lullm
from lullm.cli.main import build_parser
from lullm.cli.parser import chosen
from lullm.config.option.option import options_of
from lullm.fleet.options import FleetOptions
from lullm.server import admin, route
from lullm.server.anthropic import route as anthropic
from lullm.server.audio import route as audio
from lullm.server.context import ServerContext
from lullm.server.error import FAILURES
from lullm.server.fleet import route as fleet
from lullm.server.llama_cpp import route as llama_cpp
from lullm.server.ollama import route as ollama
from lullm.server.openai import route as openai
from lullm.server.openai.responses import route as responses
from lullm.server.options import ServerOptions
from lullm.server.page import route as page
from lullm.server.pooling import route as pooling
from lullm.server.reference import route as reference
from lullm.server.reference.docs_page import kind_of
from lullm.server.reference.openapi import body_of, document

ENDPOINTS = "| endpoint | body |"
FIELDS = "| field | type | of |"
CODES = "| code | status | messages |"
FLAGS = "| flag | meaning |"
PACKAGE = Path(lullm.__file__).parent
_STATUS_OF = {"InvalidRequestError": 400, "EngineAsleepError": 503}


def _routes() -> list[APIRoute]:
    """The routes of a server that can sleep, and of one with several models.

    No engine runs: routes ask it nothing before they are called.
    """
    from server.conftest import ScriptedEngine

    context = ServerContext(ScriptedEngine(enable_sleep_mode=True), ServerOptions())
    parts = (openai, responses, anthropic, ollama, llama_cpp, pooling, audio, route, admin, page, fleet)
    routers = [part.router(context) for part in parts]
    routes = [each for router in [*routers, reference.router(routers)] for each in router.routes]
    return [each for each in routes if isinstance(each, APIRoute)]


def endpoints() -> list[str]:
    rows = []
    for each in sorted(_routes(), key=lambda each: (each.path, sorted(each.methods))):
        kind = body_of(each) if "POST" in each.methods else None
        rows.append([f"`{' '.join(sorted(each.methods))} {each.path}`", "" if kind is None else f"`{kind.__name__}`"])
    return table(ENDPOINTS, rows)


def fields() -> list[str]:
    """A row per name and type, with all bodies that have it so; in bold where it is required."""
    found: dict[tuple[str, str], list[str]] = {}
    routes = _routes()
    schemas = document(routes)["components"]["schemas"]
    for name in sorted({kind.__name__ for each in routes if (kind := body_of(each)) is not None}):
        schema = schemas[name]
        for field, facts in schema.get("properties", {}).items():
            shown = f"**`{name}`**" if field in schema.get("required", ()) else f"`{name}`"
            found.setdefault((field, kind_of(facts)), []).append(shown)
    return table(
        FIELDS, [[f"`{field}`", kind.replace("|", "\\|"), ", ".join(of)] for (field, kind), of in sorted(found.items())]
    )


def codes() -> list[str]:
    """From the table of the engine's failures, and the places in the code where errors with a code are made."""
    found: dict[str, tuple[set[str], list[str]]] = {}
    for _, status, code, _ in FAILURES:
        found.setdefault(code, (set(), []))[0].add(str(status))
    for path in sorted(PACKAGE.rglob("*.py")):
        constants = {
            target.id: node.value.value
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                _read_error(node, node.func.id, constants, found)
    return table(
        CODES,
        [
            [f"`{code}`", ", ".join(sorted(statuses)), "; ".join(said) or "…"]
            for code, (statuses, said) in sorted(found.items())
        ],
    )


def _read_error(
    node: ast.Call, name: str, constants: dict[str, object], found: dict[str, tuple[set[str], list[str]]]
) -> None:
    """Add the error that a call makes, if it has a code."""
    given = {each.arg: each.value for each in node.keywords}
    if name == "ApiError" and len(node.args) > 1:
        status, message, code = _text(node.args[0], constants), node.args[1], given.get("code")
    elif name in _STATUS_OF and node.args:
        status, message = str(_STATUS_OF[name]), node.args[0]
        code = given.get("code") or (node.args[2] if len(node.args) > 2 else None)
    else:
        return
    word = None if code is None else _text(code, constants)
    if word is None or not re.fullmatch("[a-z_]+", word) or status is None:
        return
    statuses, said = found.setdefault(word, (set(), []))
    statuses.add(status)
    text = _text(message, constants)
    if text and text.strip("… ") and text not in said:
        said.append(text.replace("|", "\\|"))


def _text(node: ast.expr, constants: dict[str, object]) -> str | None:
    """What an expression says, with … for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return str(constants[node.id]) if node.id in constants else "…"
    if isinstance(node, ast.JoinedStr):
        parts = ("…" if isinstance(part, ast.FormattedValue) else _text(part, constants) or "" for part in node.values)
        return "".join(parts)
    return "…"


def flags() -> list[str]:
    """Of `lullm serve`, but the engine's."""
    rows = []
    titles = {each.group for each in (*options_of(ServerOptions), *options_of(FleetOptions))}
    for group in chosen(build_parser(), ["serve"])[0]._action_groups:
        for action in group._group_actions if group.title in titles else ():
            names = ", ".join(f"`{name}`" for name in action.option_strings)
            value = "" if action.nargs == 0 else f" {action.metavar or ' | '.join(action.choices or ())}"
            text = (
                (action.help or "").replace("%%", "%") % {"default": action.default}
                if "%(" in (action.help or "")
                else (action.help or "")
            )
            rows.append([f"{names}{value}".replace("|", "\\|"), text.replace("|", "\\|").replace("%%", "%")])
    return table(FLAGS, rows)
