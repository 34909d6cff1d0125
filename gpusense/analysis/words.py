"""How findings say where and how much: one way for all of them."""

from collections.abc import Sequence

from .._records.records import Path
from .._records.work import WorkKind
from .._runtime.text import count_text, one_line, percent_text, time_text
from .view import View

#: Why a device is idle, by the names of :data:`~gpusense.analysis.view.CAUSES`; "none" is the rest.
IDLE = {
    "launch": "launch overhead",
    "synchronising": "after waits of the host",
    "host": "waiting for the host",
    "new": "before new work or sizes",
    "allocation": "allocating or freeing memory",
    "graph": "within a graph",
    "none": "no work",
}

#: What that means.
WHY_IDLE = {
    "launch": "so long takes one launch after the other: nothing was queued behind the work before it",
    "synchronising": "the host had waited for the device, and launched again only then",
    "host": "the host did something else before it launched again",
    "new": "work or sizes came that had not run before: compiling, tuning or loading",
    "allocation": "memory of the device was allocated or released",
    "graph": "so long the device takes from one node of a CUDA graph to the next",
    "none": "before the first work or after the last",
}

#: An average step that differs so much from the middle one, as which reports give the length of one, is called that.
_OTHER = 0.02

#: What a device does meanwhile, by direction: "does nothing but copy to the device".
COPIES = {
    "cpu_to_gpu": "copy to the device",
    "gpu_to_cpu": "copy to the host",
    "gpu_to_gpu": "copy between GPUs",
    "on_device": "copy on the device",
    "cpu_to_cpu": "copy on the host",
}


def copies_text(direction: str) -> str:
    """ "copies to the device"."""
    return COPIES.get(direction, "copy").replace("copy", "copies", 1)


def each_text(view: View, spent: float) -> str:
    """ "86 % of each step (133 ms of 155 ms)"; without steps of the main part of the run."""
    steps = view.told
    share = percent_text(view.share(spent))
    if steps is None:
        return f"{share} of the main part ({time_text(spent)} of {time_text(view.length_ns)})"
    each = view.length_ns / steps.number
    average = " on average" if abs(each - steps.median_ns) > _OTHER * steps.median_ns else ""
    return f"{share} of each step ({time_text(spent / steps.number)} of {time_text(each)}{average})"


def among_steps(view: View, count: int, *words: str) -> str:
    """ "818 kernels a step", or in all. ``words``: what :func:`count_text` takes."""
    steps = view.told
    if steps is None or count < steps.number:
        return count_text(count, *words)
    return f"{count_text(round(count / steps.number), *words)} a step"


def path_text(path: Path) -> str:
    """ "“train › load”"."""
    return f"“{one_line(' › '.join(path))}”"


def kernel_text(view: View, kind: WorkKind) -> str:
    """What a piece of work is called in a sentence."""
    if kind.kind == "transfer":
        return f"a {COPIES.get(kind.direction or '', 'copy')}"
    return one_line(kind.name, 60)


def between_text(view: View, gaps: Sequence[int]) -> str:
    """ "between optimizer and a copy to the device", where most of the gaps lie; "" where they are all over."""
    rows = view.places(gaps)
    if not rows:
        return ""
    before, after, _, spent = rows[0]
    if spent < 0.4 * sum(row[3] for row in rows):
        after_one: dict[str, int] = {}
        for one, _, _, part in rows:
            after_one[kernel_text(view, one)] = after_one.get(kernel_text(view, one), 0) + part
        name, most = max(after_one.items(), key=lambda row: row[1])
        return f"after {name}" if most >= 0.5 * sum(after_one.values()) else ""
    return _pair_text(view, before, after)


def _pair_text(view: View, before: WorkKind, after: WorkKind) -> str:
    if before == after:
        return f"between {'' if before.kind == 'transfer' else 'a '}{kernel_text(view, before)} and the next"
    return f"between {kernel_text(view, before)} and {kernel_text(view, after)}"


def places_text(view: View, gaps: Sequence[int]) -> str:
    """ "27 % between optimizer and forward, 19 % between …": the places that have a tenth of some gaps or more."""
    rows = view.places(gaps)
    whole = sum(spent for *_, spent in rows)
    large = [row for row in rows[:3] if 10 * row[3] >= whole > 0]
    return ", ".join(f"{percent_text(spent / whole)} {_pair_text(view, one, two)}" for one, two, _, spent in large)


def place_text(view: View, gaps: Sequence[int]) -> str:
    """Where the gaps lie: in a block, if most do, else between what and what."""
    return block_text(view, gaps) or between_text(view, gaps)


def block_text(view: View, gaps: Sequence[int]) -> str:
    """The block in which most of the gaps lie; "" where there is none."""
    inside = view.blocks(gaps)
    total = sum(spent for *_, spent in view.places(gaps))
    if inside and inside[0][1] >= 0.5 * total and (view.steps is None or inside[0][0][-1:] != (view.steps.name,)):
        return f"in {path_text(inside[0][0])}"
    return ""
