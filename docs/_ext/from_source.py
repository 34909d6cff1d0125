"""What the reference takes from the package itself: fields with their comments, the verbs of the command, and links.

Three directives. ``{record}`` documents NamedTuples, one a line, with a table of their fields. ``{row} gpusense.Type``
is that table alone with what is derived from the fields, as JSON has it. ``{verbs}`` is all verbs with their arguments.
"""

import ast
import inspect
import tokenize
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode


class Field(NamedTuple):
    name: str
    type: str
    default: str
    comment: str


def find(path: str) -> Any:
    """The object ``module.Class`` names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def fields(record: type) -> Iterator[Field]:
    """The fields of a NamedTuple, in order, with the comment that stands behind each."""
    lines, _ = inspect.getsourcelines(record)
    rest = iter(lines)
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(lambda: next(rest, ""))
        if token.type == tokenize.COMMENT and "type: ignore" not in token.string
    }
    (definition,) = ast.parse("".join(lines)).body
    assert isinstance(definition, ast.ClassDef)
    for item in definition.body:
        if isinstance(item, ast.AnnAssign):
            assert isinstance(item.target, ast.Name)
            default = ast.unparse(item.value) if item.value is not None else ""
            yield Field(item.target.id, ast.unparse(item.annotation), default, comments.get(item.lineno, ""))


def field_table(record: type) -> str:
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for field in fields(record):
        cells = (f"`{field.name}`", f"`{field.type}`", f"`{field.default}`" if field.default else "", field.comment)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def row_table(record: type) -> str:
    """The fields of a JSON object: those of the type, and its properties."""
    told = [(field.name, field.type, field.comment) for field in fields(record)]
    for name, member in vars(record).items():
        if isinstance(member, property):
            kind = inspect.signature(member.fget).return_annotation
            text = " ".join((member.__doc__ or "").split())
            told.append((name, getattr(kind, "__name__", str(kind)), text))
    rows = [f"| `{name}` | `{kind}` | {text} |".replace(" | None`", "`") for name, kind, text in told]
    return "\n".join(["| field | type | |", "|---|---|---|", *rows])


class Row(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(row_table(find(self.arguments[0])))


class Record(SphinxDirective):
    has_content = True

    def run(self) -> list[nodes.Node]:
        return [node for path in self.content for node in self.parse_text_to_nodes(documented(path))]


def documented(path: str) -> str:
    made = f"```{{eval-rst}}\n.. autoclass:: {path}\n   :members:\n   :undoc-members:\n```\n"
    return f"{made}\n{field_table(find(path))}\n"


def verbs() -> Iterator[str]:
    """A section a verb, as Markdown: what it does, its usage and its arguments."""
    from gpusense import cli

    for name in cli._present():
        parser = cli.parser_of(name)
        yield f"## {name}\n"
        yield f"{parser.description}\n"
        parser.formatter_class = _Wide
        yield f"```text\n{parser.format_usage().removeprefix('usage: ').rstrip()}\n```\n"
        yield "| argument | |\n|---|---|"
        for action in parser._actions:
            if "--help" not in action.option_strings:
                yield f"| {_argument(action)} | {(action.help or '').replace('|', chr(92) + '|')} |"
        yield f"\n{parser.epilog or ''}\n" if name != "run" else ""


def _Wide(prog: str) -> Any:
    import argparse

    return argparse.HelpFormatter(prog, width=100)


def _argument(action: Any) -> str:
    value = action.metavar or action.dest.upper()
    if not action.option_strings:
        return f"`{value}`"
    takes = "" if action.nargs == 0 else f" [{value}]" if action.nargs == "?" else f" {value}"
    return ", ".join(f"`{option}{takes}`" for option in action.option_strings)


class Verbs(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(verbs()), allow_section_headings=True)


def _resolve(app: Sphinx, env: Any, node: Any, content: Any) -> Any:
    """A link for a name written as users write it: the one documented object whose path ends so."""
    if node.get("refdomain") != "py":
        return None
    wanted = node["reftarget"].removeprefix("gpusense.")
    domain = env.get_domain("py")
    found = {
        (entry.docname, entry.node_id): name
        for name, entry in domain.objects.items()
        if name == wanted or name.endswith("." + wanted)
    }
    if len(found) != 1:
        return None
    (((page, anchor), name),) = found.items()
    return make_refnode(app.builder, node["refdoc"], page, anchor, content, name)


def _skip(app: Sphinx, what: str, name: str, item: Any, skip: bool, options: Any) -> bool | None:
    """Fields of a NamedTuple stand in its table."""
    return True if type(item).__name__ == "_tuplegetter" else None


def _signature(app: Sphinx, what: str, name: str, item: Any, *_: Any) -> tuple[str, None] | None:
    return ("", None) if what == "class" and hasattr(item, "_fields") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("record", Record)
    app.add_directive("row", Row)
    app.add_directive("verbs", Verbs)
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True}
