"""Words that a person sees: what the package says in logs, reasons, help and errors, in words that people use."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from support.tree import PATHS, nodes

from gpusense import cli

#: What is called otherwise, or says nothing to who has not read the source.
UNHEARD = re.compile(
    r"\b(?:stretch(?:es)?|piles?|crossings?|drafts?|alike|dut(?:y|ies)|by hand|drain\w*|inherited|mailbox|errands?"
    r"|first contact|off the path|time it was at it|empty after the host|in any mood"
    r"|keep one by one|kept one by one|tells nobody|where alone|must not be touched"
    r"|is no (?:number|time|size|share|address))\b"
    r"|(?<=\w) alone(?=[.,;:)]|$)",
    re.IGNORECASE,
)
#: Ways to speak to people, with the places of what they say.
SAID = {"debug": (0,), "once": (1,), "exception": (1,), "Unavailable": (1, 2), "Check": (2, 3)}
SENTENCE = re.compile(r"[.!?] +(?=[A-Z])")


def said(node: ast.expr) -> str:
    """The text of an expression, "…" for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(said(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.IfExp):
        return f"{said(node.body)} … {said(node.orelse)}"
    return "…"


@cache
def spoken() -> list[tuple[str, ast.Call | ast.Constant | ast.JoinedStr]]:
    """(module, node) of each call and each string of the package but doc strings."""
    found = []
    for module in PATHS:
        every = nodes(module)
        left_out = {
            id(node.value) for node in every if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call)
        }
        left_out |= {id(part) for node in every if isinstance(node, ast.JoinedStr) for part in node.values}
        found += [
            (module, node)
            for node in every
            if isinstance(node, ast.Call | ast.Constant | ast.JoinedStr) and id(node) not in left_out
        ]
    return found


def calls() -> Iterator[tuple[str, str]]:
    """(where, text) of each message of the log and each reason or hint of an absence."""
    for where, node in spoken():
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            for place in SAID.get(name, ()):
                if place < len(node.args):
                    yield f"{where}:{node.lineno}", said(node.args[place])


def helps() -> Iterator[tuple[str, str]]:
    """(verb, text) of all that ``--help`` says."""
    yield from (("gpusense", line) for line in cli._help().splitlines())
    for verb in cli._present():
        parser = cli.parser_of(verb)
        yield verb, parser.description or ""
        yield from ((f"{verb} {action.dest}", action.help or "") for action in parser._actions)


def sentences() -> Iterator[tuple[str, str]]:
    """(where, text) of every string of three words or more but doc strings, assembly and programs."""
    for where, node in spoken():
        text = "" if isinstance(node, ast.Call) else said(node)
        if text.count(" ") > 1 and "\n" not in text.strip():
            yield f"{where}:{node.lineno}", text


def test_words_that_nobody_uses_are_not_said():
    found = [f"{where}: {text}" for where, text in (*sentences(), *helps()) if UNHEARD.search(text)]
    assert not found, "\n".join(found)


def test_a_message_a_reason_and_a_help_are_two_sentences_at_most():
    long = [f"{where}: {text}" for where, text in (*calls(), *helps()) if len(SENTENCE.findall(text)) > 1]
    assert not long, "\n".join(long)


def test_messages_of_the_log_have_their_prefix_from_one_place():
    assert not [f"{where}: {text}" for where, text in calls() if text.startswith("gpusense:")]


def test_verbs_and_what_they_do_fit_a_terminal():
    assert max(map(len, cli._help().splitlines())) <= 80
