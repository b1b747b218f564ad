"""counted: a parsed template with calls to its meter inserted.

They are filters (`_weigh`, `_rounds`, `_concat`), which compiled templates call directly.
"""

from typing import Any, cast

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

_CHARS_PER_STEP = 256
"""A loop's own text is referred to in each round and copied once at the end."""

CHECKS_SYNTAX: frozenset[type[nodes.Node]] = frozenset(
    {
        nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Macro, nodes.CallBlock,
        nodes.FilterBlock, nodes.With, nodes.Block, nodes.Assign, nodes.AssignBlock, nodes.Scope, nodes.Name,
        nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr,
        nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare,
        nodes.Operand, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Add, nodes.Sub, nodes.Mod, nodes.Pow, nodes.Not,
        nodes.Neg, nodes.Pos, nodes.And, nodes.Or, nodes.Continue, nodes.Break,
    }
)  # fmt: skip
"""The syntax whose cost the meter covers."""


def counted(tree: nodes.Template) -> nodes.Template:
    """The tree, changed in place."""
    counted_tree: nodes.Template = _Readings().visit(tree)
    return counted_tree


class _Readings(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.For:
        text_len = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = _filter("_rounds", cast(nodes.Expr, node.iter), [nodes.Const(1 + text_len // _CHARS_PER_STEP)])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filter("_concat", node.nodes[0], node.nodes[1:])

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        """A comparison takes as long as its shorter side; one with a constant is short, unless it searches."""
        self.generic_visit(node)
        sides: list[Any] = [node.expr, *(operand.expr for operand in node.ops)]
        searches = any(operand.op in ("in", "notin") for operand in node.ops)
        if searches or not any(isinstance(side, nodes.Const) for side in sides):
            if not isinstance(node.expr, nodes.Const):
                node.expr = _filter("_weigh", node.expr)
            for operand in node.ops:
                if not isinstance(operand.expr, nodes.Const):
                    operand.expr = _filter("_weigh", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filter("_weigh", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._container(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return node if node.ctx == "store" else self._container(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._container(node, [pair.value for pair in node.items])

    def _container(self, node: nodes.Expr, items: list[nodes.Expr]) -> nodes.Expr:
        self.generic_visit(node)
        return node if all(isinstance(item, nodes.Const) for item in items) else _filter("_weigh", node)


def _filter(name: str, node: nodes.Expr, args: list[nodes.Expr] | None = None) -> nodes.Filter:
    found = nodes.Filter(node, name, args or [], [], None, None)
    found.set_lineno(node.lineno)
    return found
