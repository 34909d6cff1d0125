"""What counters add to the findings about the device's own work: how near a roof it is, and how much of the chip works.

Names of kernels and sizes of launches tell what might be wrong, counters whether it is. All shares are of the phase
that is judged.
"""

from collections.abc import Iterator, Sequence

from .._records.device_identity import device_of
from .._runtime.text import count_text, percent_text, rate_text
from .activity import Activity, activity, counted
from .counters import integrals
from .facts import Facts, Finding
from .families import family
from .intervals import Interval, union
from .peaks import peaks
from .roofline import MeasuredBlock, Rate, measured, rate_of
from .rows import marked, sums
from .rules_host import finding
from .view import WORTH, View
from .words import each_text

MUCH = 0.15  # of the phase: worth a word about kernels
#: Families that move data through memory and do little with it.
ELEMENTWISE = frozenset({"elementwise", "copy", "random"})
#: From this share of the memory's bandwidth on it is what work waits for.
_AT_THE_ROOF = 0.7
#: A tensor pipe that works less is idle; single precision from this share of its peak on is real work.
_IDLE, _REAL = 0.01, 0.3
#: Operations a byte from which on work is no elementwise one.
_PRODUCT = 10.0
#: Multiprocessors that are active less, of the time in which kernels run, have too little to do; from the higher one on
#: nobody need say so.
_EMPTY, _ENOUGH = 0.35, 0.6
_SINGLE, _TENSOR_TYPE = "fp32", "tf32"


def kernels_text(view: View, spent: float) -> str:
    """ "62 % of each step (5.1 ms of 8.2 ms)": of the phase, never more than the whole of it."""
    return each_text(view, min(spent, view.parts.kernel))


def shares_of(view: View, names: Sequence[str]) -> list[str]:
    """Of the first of some kernels how much they take, and how often they run."""
    return [
        f"{view.label(name)}: {percent_text(view.kernels[name][1] / view.kernel_ns)} of the kernels' time, "
        f"{count_text(view.kernels[name][0], 'call')}."
        for name in names[:3]
    ]


# --- memory ----------------------------------------------------------------------------------------------------------


def memory_bound(view: View, facts: Facts) -> Iterator[Finding]:
    """Elementwise kernels that run as fast as the memory lets them, and are not in a row."""
    spent = sum(view.families.get(one, 0) for one in ELEMENTWISE)
    found = _of_elementwise(view, facts)
    if found is None or found.memory is None or found.memory < _AT_THE_ROOF or view.share(spent) < MUCH:
        return
    names = [name for name in view.kernels if family(name) in ELEMENTWISE]
    yield finding(
        view,
        "memory_bound",
        min(spent, view.parts.kernel) / 2,
        f"{view.text} runs elementwise kernels for {kernels_text(view, spent)} at {percent_text(found.memory)} of its "
        "memory's bandwidth: only moving less data makes them faster.",
        [*shares_of(view, names), *_of_rate(found)],
        "Fuse them with what makes or uses their data: torch.compile, jax.jit or one kernel of your own (Triton) reads "
        "and writes it once. Or use a smaller type.",
        confidence="medium",
        where=view.label(names[0]),
    )


def of_memory(view: View, facts: Facts) -> list[str]:
    """What elementwise kernels reach of the memory's bandwidth, in a sentence; none where that was not counted."""
    found = _of_elementwise(view, facts)
    return _of_rate(found) if found is not None else []


def _of_rate(found: Activity) -> list[str]:
    if found.memory is None:
        return []
    return [f"Counted while they run: {rate_text(found.bytes_per_s)}, {percent_text(found.memory)} of the bandwidth."]


def _of_elementwise(view: View, facts: Facts) -> Activity | None:
    """By samples over their time, else by measured blocks that consist of them."""
    blocks = _blocks(view, facts)
    if view.key[0] != "cuda" or not (blocks or view.device in facts.session.once(integrals)):
        return None
    work = view.work
    mine = [one.kind == "kernel" and family(one.full_name or one.name) in ELEMENTWISE for one in work.kinds]
    rows = view.rows.where(marked(work.kind, mine))
    spans = union(list(zip(rows.of(work.start), rows.of(work.end), strict=True)))
    found = counted(facts.session, view.device, _closed(spans))
    if found is not None:
        return found
    whole, elementwise = (_by_path(view), _by_path(view, mine)) if blocks else ({}, {})
    for block in blocks:
        inside = _inside(whole, block)
        if inside and 2 * _inside(elementwise, block) >= inside and block.memory_share is not None:
            return Activity(memory=block.memory_share, bytes_per_s=block.bytes_per_s)
    return None


def _closed(spans: list[Interval]) -> list[Interval]:
    """With the pauses between two launches, which are no other work."""
    joined: list[Interval] = []
    for start, end in spans:
        if joined and start - joined[-1][1] <= _PAUSE_NS:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


#: Between two kernels that follow one another.
_PAUSE_NS = 5_000


# --- single precision ------------------------------------------------------------------------------------------------


def of_single_precision(view: View, facts: Facts) -> list[str]:
    """What products in single precision reach, in a sentence."""
    for block in _blocks(view, facts):
        rate = _single(block)
        if rate is not None:
            active = f"; tensor cores active {percent_text(block.tensor_active)}" * (block.tensor_active is not None)
            return [f"Counted in {block.name}: {_reached(rate)}{active}."]
    return []


def idle_tensor_cores(view: View, facts: Facts) -> Iterator[Finding]:
    """A block that computes in single precision beside idle tensor cores, whatever its kernels are called."""
    blocks = [block for block in _blocks(view, facts) if _single(block) is not None]
    times = _by_path(view) if blocks else {}
    for block in blocks:
        rate, spent = _single(block), _inside(times, block)
        if rate is None or view.share(spent) < MUCH:
            continue
        top = peaks(device_of(facts.session.devices, *view.key)).of(_TENSOR_TYPE, tensor=True)
        could = f" and could do {rate_of(top, _TENSOR_TYPE)} in TF32" if top else ""
        yield finding(
            view,
            "fp32_math",
            0.7 * min(spent, view.parts.kernel),
            f"{view.text} computes {block.name} in single precision for {kernels_text(view, spent)}: {_reached(rate)}. "
            f"Its tensor cores are idle there{could}.",
            [
                f"Measured in {count_text(block.passes, 'pass', 'passes')}: {block}.",
            ],
            "Allow TF32 (torch.set_float32_matmul_precision('high')), or use bfloat16 (torch.autocast), if these are "
            "products.",
            confidence="medium",
            where=block.name,
        )
        return


def _single(block: MeasuredBlock) -> Rate | None:
    """Its rate of single precision where that is what it does, and tensor cores do nothing."""
    tensor = sum(rate.per_s for rate in block.operations if rate.tensor)
    rate = next((one for one in block.operations if one.type == _SINGLE and not one.tensor), None)
    known = block.tensor_active is not None or any(one.tensor for one in block.operations)
    busy = (block.tensor_active or 0.0) >= _IDLE or tensor
    product = block.intensity is not None and block.intensity >= _PRODUCT
    return rate if rate is not None and (rate.share or 0.0) >= _REAL and known and not busy and product else None


def _reached(rate: Rate) -> str:
    return f"{rate_of(rate.per_s, rate.type)}, {percent_text(rate.share)} of what it can do without tensor cores"


# --- how much of the chip --------------------------------------------------------------------------------------------


def small_grids(view: View, facts: Facts, by_sizes: Sequence[Finding], fix: str) -> Iterator[Finding]:
    """What sizes of launches tell, as far as the device's own counters agree; and what these alone tell."""
    found = activity(facts.session, view.device, view.spans) if view.key[0] == "cuda" else None
    kernels = view.share(view.parts.kernel)
    if found is None or found.sm is None or not kernels:
        yield from by_sizes
        return
    active = min(1.0, found.sm / kernels)
    said = f"Counted by the device: its multiprocessors are active {percent_text(active)} of the kernels' time."
    for one in by_sizes:
        if one.kind == "small_grids" and active >= _ENOUGH:
            continue  # the counters know better
        yield one._replace(evidence=(*one.evidence[:-1], said), confidence="high") if one.kind == "small_grids" else one
    if by_sizes or active >= _EMPTY or view.families.get("communication", 0) * 3 > view.kernel_ns:
        return
    idle = view.parts.kernel * (1 - active)
    if kernels >= 2 * MUCH and view.share(idle) >= WORTH:
        of = "each step" if view.told is not None else "the main part"
        yield finding(
            view,
            "small_grids",
            idle,
            f"{view.text} is busy {percent_text(view.share(view.parts.busy))} of {of}, but its multiprocessors are "
            f"active only {percent_text(active)} of the kernels' time: the grids are too small.",
            [*shares_of(view, list(view.kernels)), "Counted by the device, not inferred from the launches."],
            fix,
            where=view.label(next(iter(view.kernels))),
        )


# --- blocks ----------------------------------------------------------------------------------------------------------


def _blocks(view: View, facts: Facts) -> list[MeasuredBlock]:
    """Measured ones of the view's device and process, innermost first: those say most of what ran in them."""
    root = view.program.root
    rows = [
        row
        for row in facts.session.once(measured)
        if view.key == ("cuda", row.device) and (root is None or row.path[:1] == (root,))
    ]
    return sorted(rows, key=lambda row: -len(row.path))


def _by_path(view: View, mine: "list[bool] | None" = None) -> dict[tuple[str, ...], int]:
    """Nanoseconds of kernels by the path of blocks that launched them; ``mine``: of some kinds alone."""
    work = view.work
    kinds = mine if mine is not None else [one.kind == "kernel" for one in work.kinds]
    rows = view.rows.where(marked(work.kind, kinds))
    spent = sums(rows.of(work.path), rows.lengths(work.start, work.end), len(work.paths))
    return {path: length for path, length in zip(work.paths, spent, strict=True) if length}


def _inside(times: dict[tuple[str, ...], int], block: MeasuredBlock) -> int:
    return sum(spent for path, spent in times.items() if path[: len(block.path)] == block.path)
