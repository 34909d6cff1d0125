"""The exposition formats: Prometheus's text 0.0.4, and OpenMetrics 1.0. Pure."""

from collections.abc import Iterable
from typing import NamedTuple


class Family(NamedTuple):
    """One metric, with the name of its samples. ``unit``: what that ends in, but for ``_total``, or ""."""

    name: str
    kind: str  # "gauge" or "counter"
    unit: str
    help: str
    rows: list[tuple[dict[str, str], float]]  # labels and value; no two with the same labels


class Format(NamedTuple):
    content_type: str
    openmetrics: bool


PLAIN = Format("text/plain; version=0.0.4; charset=utf-8", False)
OPENMETRICS = Format("application/openmetrics-text; version=1.0.0; charset=utf-8", True)


def accepted(header: str) -> Format:
    """The format for an ``Accept`` header: OpenMetrics where it is wanted at least as much as plain text."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in header.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if kind == "application/openmetrics-text" and "version=0.0.1" in parameters:
            continue
        weight = next((_number(one[2:]) for one in parameters if one.startswith("q=")), 1.0)
        if kind in weights:
            weights[kind] = max(weights[kind], weight)
    wanted = weights["application/openmetrics-text"]
    return OPENMETRICS if wanted > 0 and wanted >= weights["text/plain"] else PLAIN


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def written(families: Iterable[Family], form: Format) -> str:
    """The page. Families without rows are left out."""
    lines: list[str] = []
    for family in families:
        if family.rows:
            lines += _lines(family, form.openmetrics)
    if form.openmetrics:
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines)


def _lines(family: Family, openmetrics: bool) -> list[str]:
    name, kind = family.name, family.kind
    if openmetrics and kind == "counter":  # whose samples end in _total there, and in nothing else
        name, kind = name.removesuffix("_total"), kind if name.endswith("_total") else "unknown"
    lines = [f"# HELP {name} {_escaped(family.help, quotes=openmetrics)}", f"# TYPE {name} {kind}"]
    if openmetrics and family.unit:
        lines.append(f"# UNIT {name} {family.unit}")
    for labels, value in family.rows:
        inside = ",".join(f'{key}="{_escaped(text, quotes=True)}"' for key, text in labels.items())
        lines.append(f"{family.name}{{{inside}}} {value!r}" if inside else f"{family.name} {value!r}")
    return lines


def _escaped(text: str, *, quotes: bool) -> str:
    r"""``\`` and line feeds, in label values also quotes. What UTF-8 cannot hold becomes its escape."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
