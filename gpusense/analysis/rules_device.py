"""Findings about the device's own work: copies, collectives, arithmetic, fusion, launch sizes, memory, clocks.

All shares are of the phase that is judged: the steps, where there are such.
"""

import re
from array import array
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from .._records import lanes
from .._records.device_identity import device_of, device_text
from .._records.occupancy import Limits, blocks_per_sm
from .._records.records import Path
from .._records.work import WorkKind
from .._runtime.text import count_text, one_line, percent_text, rate_text, size_text, time_text
from . import rules_counters
from .facts import Facts, Finding
from .families import family, precision, uses_tensor_cores
from .intervals import Interval, intersect, subtract, total, union
from .operation import DEVICE_KINDS, WAYS
from .processes import processes_of
from .rows import Rows, marked
from .rules_counters import ELEMENTWISE, MUCH, kernels_text, shares_of
from .rules_host import finding
from .sampled import concerned, sampled
from .transfers import SMALL_BYTES
from .view import WORTH, View
from .words import COPIES, IDLE, among_steps, copies_text, each_text

#: What pinned memory reaches over PCIe of generation 4 with 16 lanes, where neither the run nor a sample says better.
_PINNED_BYTES_PER_S = 22e9
#: Reasons for lower clocks that are not "idle" or "as set".
_HARMFUL = ("thermal", "power_brake", "hw_slowdown", "sw_thermal", "hw_thermal")
#: A process that computes on a device has at least so much of its memory: a context alone takes more.
_AT_WORK_BYTES = 64 << 20
#: A device is as good as always busy from this share of its phase on.
_BUSY = 0.95
#: Kernels of this length fill the device: a larger batch would only make them longer.
_LONG_NS = 200_000
#: An elementwise kernel of this length is no short one.
_CHAINED_NS = 10_000
_MORE_WORK = (
    "Give each launch more work: batch similar work into one launch, split large blocks, or run independent kernels "
    "on several streams."
)


# --- copies ----------------------------------------------------------------------------------------------------------


class _Copies(NamedTuple):
    """Copies of one direction in a phase."""

    direction: str
    count: int  # type: ignore[assignment]
    total_ns: int
    bytes: int
    pageable_ns: int
    pageable_bytes: int
    pageable_count: int
    pinned_rate: float | None  # best of a kind of copies between pinned memory and the device
    small: int


def _copies(view: View) -> list[_Copies]:
    sums: dict[str, list[float]] = {}
    for number, (count, spent, size) in view.by_kind.items():
        one = view.work.kinds[number]
        if one.kind != "transfer" or not one.direction:
            continue
        row = sums.setdefault(one.direction, [0, 0, 0, 0, 0, 0, 0.0, 0])
        row[0] += count
        row[1] += spent
        row[2] += size
        ends = (one.source, one.destination)
        if "pageable" in ends:
            row[3] += spent
            row[4] += size
            row[5] += count
        elif "pinned" in ends and spent and size >= SMALL_BYTES * count:
            row[6] = max(row[6], size * 1e9 / spent)
        row[7] += count if size < SMALL_BYTES * count else 0
    return [
        _Copies(direction, int(n), int(ns), int(size), int(pns), int(psize), int(pn), rate or None, int(small))
        for direction, (n, ns, size, pns, psize, pn, rate, small) in sums.items()
    ]


def copies(facts: Facts) -> Iterator[Finding]:
    """Copies with nothing beside them: from pageable memory, or in turn with the kernels."""
    for view in facts.views:
        alone = view.parts.copy_alone
        if view.share(alone) < WORTH:
            continue
        rows = _copies(view)
        if 2 * view.in_stall(row for row in view.rows if view.work.kinds[view.work.kind[row]].kind == "transfer") > 1:
            continue  # part of what is said of the stall
        pageable = sum(row.pageable_ns for row in rows if row.pageable_bytes >= SMALL_BYTES * row.pageable_count)
        whole = sum(row.total_ns for row in rows)
        if whole and pageable * 2 >= whole:
            yield from _pageable(view, facts, max(rows, key=lambda row: row.pageable_ns), alone)
        elif whole and sum(row.small for row in rows) * 2 < sum(row.count for row in rows):
            yield _exposed(view, facts, rows, alone)


def _pageable(view: View, facts: Facts, row: _Copies, alone: int) -> Iterator[Finding]:
    reached = row.pageable_bytes * 1e9 / row.pageable_ns
    link = [
        group.link_bytes_per_s * 0.8
        for group in facts.transfers
        if group.direction == row.direction and group.link_bytes_per_s
    ]
    best = row.pinned_rate or max(link, default=_PINNED_BYTES_PER_S)
    said = "Pinned copies of this run reach" if row.pinned_rate else "Pinned copies usually reach"
    faster = max(0.0, 1 - reached / best)
    saving = min(alone, row.pageable_ns)
    way = "from" if row.direction == "cpu_to_gpu" else "into"
    yield finding(
        view,
        "pageable_copies",
        saving,
        f"{view.text} does nothing but {COPIES[row.direction]} for {each_text(view, alone)}: "
        f"{way} pageable memory, at {rate_text(reached)}.",
        [
            (
                f"{size_text(row.pageable_bytes)} in {count_text(row.pageable_count, 'copy', 'copies')} "
                f"{way} pageable memory, which the host must wait for."
            ),
            (
                f"{said} {rate_text(best)}, which saves {percent_text(faster)} of this time, and they can run beside "
                "kernels."
                if faster >= 0.05
                else "Copies from and to pinned memory can run beside kernels."
            ),
            *_narrow(view, facts),
        ],
        "Pin the host memory (DataLoader(pin_memory=True), tensor.pin_memory(), cupyx.empty_pinned) and copy with "
        "non_blocking=True; copy less, and small results less often.",
        confidence="high" if row.pinned_rate or link else "medium",
        where=f"{copies_text(row.direction)}, pageable",
    )


#: What to do about copies that nothing runs beside, by direction.
_OVERLAP = {
    "cpu_to_gpu": "Copy the next input, or the next layer's weights, on a second stream while this one is computed",
    "gpu_to_cpu": "Copy less, or copy results on a second stream while the next ones are computed",
}


def _narrow(view: View, facts: Facts) -> list[str]:
    """That the link has lost lanes, by the monitor's samples."""
    for card in sampled(facts.session):
        links = [(one.pcie.width, one.pcie.max_width) for one in card.samples if one.pcie.width and one.pcie.max_width]
        width, most = max(links, default=(0, 0))
        if card.number is not None and card.number == view.device and width < most:
            return [
                f"Its PCI Express link runs on {width} of {most} lanes: look at its slot, riser and firmware first."
            ]
    return []


def _exposed(view: View, facts: Facts, rows: list[_Copies], alone: int) -> Finding:
    most = max(rows, key=lambda row: row.total_ns)
    ran, one = ("passes", "pass") if view.graphics else ("kernels", "kernel")
    return finding(
        view,
        "exposed_copies",
        alone,
        f"{view.text} does nothing but {COPIES[most.direction]} for {each_text(view, alone)}: copies and {ran} take "
        "turns.",
        [
            (
                f"{time_text(alone)} of {time_text(view.parts.copy)} of copying had no {one} beside it; "
                f"{percent_text(most.total_ns / sum(row.total_ns for row in rows))} of it are "
                f"{copies_text(most.direction)}, at "
                f"{rate_text(most.bytes * 1e9 / most.total_ns if most.total_ns else None)}."
            ),
            *(["In wgpu's queue copies and passes always take turns."] if view.graphics else []),
            *_narrow(view, facts),
        ],
        "Copy less: only what has changed, or bind the buffer or texture itself."
        if view.graphics
        else f"{_OVERLAP['gpu_to_cpu' if most.direction == 'gpu_to_cpu' else 'cpu_to_gpu']} (pinned memory, "
        "non_blocking=True, an event to wait for it).",
        where=copies_text(most.direction),
    )


def small_copies(facts: Facts) -> Iterator[Finding]:
    """Many copies whose fixed cost is most of their time."""
    for view in facts.views:
        rows = _copies(view)
        small = sum(row.small for row in rows)
        least = 10 * view.steps.number if view.steps is not None else 100
        if small < least:
            continue
        spent = view.parts.copy_alone
        gaps, work = view.walk.gaps, view.work
        for number in view.causes["launch"].gaps:
            if work.kinds[work.kind[gaps.before[number]]].kind == "transfer":
                spent += gaps.end[number] - gaps.start[number]
        waits = view.causes["synchronising"]
        for number in waits.gaps:
            if work.kinds[work.kind[gaps.after[number]]].direction == "cpu_to_gpu":
                spent += gaps.end[number] - gaps.start[number]
        if view.share(spent) < WORTH:
            continue
        most = max(rows, key=lambda row: row.small)
        yield finding(
            view,
            "small_copies",
            spent,
            f"{view.text} spends {each_text(view, spent)} on "
            f"{among_steps(view, small, 'small copy', 'small copies')} and the pauses after them: their fixed cost "
            "dominates.",
            [
                (
                    f"{count_text(small, 'copy', 'copies')} below 64 KiB, most of them {copies_text(most.direction)}, "
                    f"{size_text(most.bytes / most.count)} on average."
                )
            ],
            f"Join them into few large ones: one {'buffer' if view.graphics else 'tensor'} with all the values, sliced "
            "on the device; or keep the data there.",
            where=copies_text(most.direction),
        )


def exposed_collectives(facts: Facts) -> Iterator[Finding]:
    """Communication that nothing computes beside."""
    for view in facts.views:
        alone = view.parts.collective_alone
        if view.share(alone) < WORTH:
            continue
        names = [name for name in view.kernels if family(name) == "communication"]
        yield finding(
            view,
            "exposed_collectives",
            alone,
            f"{view.text} only communicates for {each_text(view, alone)}: nothing is computed beside it.",
            [
                (
                    f"{time_text(alone)} of {time_text(view.parts.collective)} of communication had no other kernel "
                    "beside it."
                ),
                f"Most of it: {', '.join(view.label(name) for name in names[:2])}.",
            ],
            "Overlap communication with the backward pass (DistributedDataParallel with buckets, async_op=True), "
            "communicate less often or in lower precision, or look for a slow rank.",
            where=view.label(names[0]) if names else "",
        )


# --- kernels ---------------------------------------------------------------------------------------------------------


#: The first compute capability whose tensor cores take single precision.
_TF32 = (8, 0)


def fp32_math(facts: Facts) -> Iterator[Finding]:
    """Products in single precision where tensor cores lie idle."""
    for view in facts.views:
        rows = [
            (name, spent)
            for name, (_, spent) in view.kernels.items()
            if family(name) in ("matmul", "convolution", "attention")
            and precision(name) == "fp32"
            and not uses_tensor_cores(name)
            and "gemv" not in name  # bound by memory: tensor cores would not help
        ]
        spent = sum(ns for _, ns in rows)
        device = device_of(facts.session.devices, view.key[0], view.device)
        generation = (device.compute_capability or _TF32 if device is not None else _TF32)[0]
        if generation < 7:  # Volta is the first with tensor cores
            continue
        if view.share(spent) < MUCH:
            yield from rules_counters.idle_tensor_cores(view, facts)
            continue
        yield finding(
            view,
            "fp32_math",
            0.7 * min(spent, view.parts.kernel),
            f"{view.text} multiplies in single precision without tensor cores for {kernels_text(view, spent)}.",
            [*shares_of(view, [name for name, _ in rows]), *rules_counters.of_single_precision(view, facts)],
            "Allow TF32 (torch.set_float32_matmul_precision('high')), or use bfloat16 (torch.autocast): tensor cores "
            "are several times as fast."
            if generation >= _TF32[0]
            else "Use float16 (torch.autocast with torch.amp.GradScaler): this device's tensor cores have no TF32.",
            where=view.label(rows[0][0]),
        )


class _Named(NamedTuple):
    """Kernels that are a finding by what they are called."""

    kind: str
    is_one: Callable[[str], object]
    saves: float  # of their time
    what: str  # the device does
    fix: str
    confidence: str


_NAMED = (
    _Named(
        "fp64_math",
        lambda name: precision(name) == "fp64",
        0.8,
        "multiplies in double precision",
        "If the results do not need it, use float32, with TF32 or bfloat16 on tensor cores: NumPy's arrays are double "
        "unless you say otherwise (tensor.float(), dtype=numpy.float32).",
        "medium",
    ),
    _Named(
        "layout_conversions",
        re.compile("nchwtonhwc|nhwctonchw", re.IGNORECASE).search,
        1.0,
        "turns tensors into the layout that convolutions want (NCHW, NHWC), and back,",
        "Keep all in one layout: model.to(memory_format=torch.channels_last), and the same for the input.",
        "high",
    ),
)


def by_names(facts: Facts) -> Iterator[Finding]:
    """Double precision, which few programs need; tensors whose layout is not that of the convolutions."""
    for view in facts.views:
        for one in _NAMED:
            names = [name for name in view.kernels if one.is_one(name)]
            spent = sum(view.kernels[name][1] for name in names)
            if view.share(spent) >= MUCH:
                yield finding(
                    view,
                    one.kind,
                    one.saves * min(spent, view.parts.kernel),
                    f"{view.text} {one.what} for {kernels_text(view, spent)}.",
                    shares_of(view, names),
                    one.fix,
                    confidence=one.confidence,
                    where=view.label(names[0]),
                )


def unfused(facts: Facts) -> Iterator[Finding]:
    """Chains of kernels that only move data: attention written out, elementwise operations one by one."""
    for view in facts.views:
        if view.share(sum(view.families.get(one, 0) for one in ("softmax", *ELEMENTWISE))) < MUCH:
            continue
        attention, chains = _chains(view)
        if view.share(attention) >= MUCH:
            names = [name for name in view.kernels if family(name) in ("softmax", *ELEMENTWISE)]
            yield finding(
                view,
                "unfused_attention",
                attention,
                f"{view.text} spends {kernels_text(view, attention)} between the two products of attention, on softmax "
                "and what is done to the scores: the scores go through memory each time.",
                shares_of(view, names),
                "Use a fused attention: torch.nn.functional.scaled_dot_product_attention, FlashAttention, or "
                "torch.compile.",
                where="softmax",
            )
        count, spent, runs = chains
        if view.told is not None:  # a chain ends with its step
            runs = max(runs, min(view.told.number, count))
        if runs and count >= 2.5 * runs and view.share(spent) >= MUCH:
            names = [name for name in view.kernels if family(name) in ELEMENTWISE and not _is_fused(name)]
            yield finding(
                view,
                "unfused_elementwise",
                spent * (1 - runs / count),
                f"{view.text} spends {kernels_text(view, spent)} on elementwise kernels, {count / runs:.0f} in a row: "
                "each reads its data from memory and writes it back.",
                [*shares_of(view, names), *rules_counters.of_memory(view, facts)],
                "Fuse them: torch.compile, torch.jit, cupy.fuse, jax.jit or one kernel of your own (Triton) reads and "
                "writes the data once.",
                where=view.label(names[0]) if names else "",
            )
        else:
            yield from rules_counters.memory_bound(view, facts)


def _is_fused(name: str) -> bool:
    """Made by a compiler that fuses: what it left apart cannot be joined as easily."""
    lower = name.lower()
    return lower.startswith(("triton_", "cupy_fuse")) or "fusion" in lower


def _chains(view: View) -> tuple[int, tuple[int, int, int]]:
    """Nanoseconds between two products of attention; and of elementwise kernels in a row: how many, nanoseconds, how
    many rows."""
    work = view.work
    of_kind: dict[int, str] = {}
    for number in view.by_kind:
        one = work.kinds[number]
        name = one.full_name or one.name
        what: str = family(name) if one.kind == "kernel" else one.kind
        of_kind[number] = "fused" if what in ELEMENTWISE and _is_fused(name) else what

    rows = view.rows.where(marked(work.kind, [of_kind.get(number) != "memset" for number in range(len(work.kinds))]))
    kinds, lengths = rows.of(work.kind), lanes.lengths(rows.of(work.start), rows.of(work.end))
    attention = (
        _between_products(zip(map(of_kind.__getitem__, kinds), lengths, strict=True))
        if view.families.get("softmax")
        else 0
    )
    plain = marked(kinds, [of_kind.get(number) in ELEMENTWISE for number in range(len(work.kinds))])
    return attention, _in_a_row(Rows(plain).where(lanes.above(lengths, _CHAINED_NS - 1)), lengths)


def _between_products(rows: Iterable[tuple[str, int]]) -> int:
    """Nanoseconds of softmax and what is done to its data between two products."""
    found, between, softmax = 0, -1, False
    for what, length in rows:
        if what == "matmul":
            found += between if softmax else 0
            between, softmax = 0, False
        elif between >= 0 and what in ("softmax", "reduction", *ELEMENTWISE):
            between += length
            softmax |= what == "softmax"
        else:
            between, softmax = -1, False
    return found


def _in_a_row(rows: Rows, lengths: "array[int]") -> tuple[int, int, int]:
    """Elementwise kernels that follow each other and are not short: how many, nanoseconds, how many rows of them."""
    chained = rows.chained()
    return len(chained), sum(chained.of(lengths)), chained.number_of_stretches


def _fills(view: View, facts: Facts) -> dict[int, float]:
    """Of each kind of kernel the share of the multiprocessors that its blocks reach; where that is known."""
    device = device_of(facts.session.devices, view.key[0], view.device)
    limits = Limits.of(device) if device is not None else None
    found = {}
    for number in view.by_kind:
        one = view.work.kinds[number]
        if one.kind != "kernel" or one.grid is None or one.block is None or device is None or not device.sm_count:
            continue
        if family(one.full_name or one.name) == "communication":  # of few blocks on purpose
            continue
        blocks = one.grid[0] * one.grid[1] * one.grid[2]
        fits = _resident(one, limits)
        if fits:
            found[number] = min(1.0, blocks / device.sm_count)
    return found


def _resident(one: WorkKind, limits: "Limits | None") -> int:
    """How many of a kernel's blocks a multiprocessor holds at once; 0 where that is not known."""
    if limits is None or one.block is None:
        return 0
    threads = one.block[0] * one.block[1] * one.block[2]
    return blocks_per_sm(limits, threads, one.registers_per_thread or 0, one.shared_bytes or 0) or 0


def launch_sizes(facts: Facts) -> Iterator[Finding]:
    """Kernels of few blocks, one after the other, as the device counted or as their sizes tell; or on streams that wait
    for each other."""
    for view in facts.views:
        yield from rules_counters.small_grids(view, facts, list(_by_sizes(view, facts)), _MORE_WORK)


def _by_sizes(view: View, facts: Facts) -> Iterator[Finding]:
    fills = _fills(view, facts)
    small = {number: share for number, share in fills.items() if share < 0.5}
    spent = sum(view.by_kind[number][1] for number in small)
    calls = sum(view.by_kind[number][0] for number in small)
    if not calls or view.share(spent) < 2 * MUCH or spent / calls < 10_000 or spent > 1.5 * view.parts.kernel:
        return
    covered = sum(view.by_kind[number][1] * share for number, share in small.items()) / spent
    names = sorted(small, key=lambda number: -view.by_kind[number][1])
    heavy = one_line(view.work.kinds[names[0]].name, 60)
    streams = _streams(view, small)
    alone = min(spent, view.parts.kernel)
    if len(streams) > 1:
        yield finding(
            view,
            "serialised_streams",
            alone * (1 - 1 / len(streams)),
            f"{view.text} runs work of {len(streams)} streams one after the other for {kernels_text(view, spent)}, "
            f"although {heavy} has blocks for only {percent_text(covered)} of its multiprocessors.",
            [
                (
                    f"Streams {', '.join(str(stream) for stream in streams)}: {time_text(sum(streams.values()))} "
                    f"of work in {time_text(alone)}, so next to nothing ran at once."
                ),
                *_why_serial(view, streams),
            ],
            "Let the streams run beside each other: no work on the default stream between them "
            "(per-thread default stream, or streams made with cudaStreamNonBlocking), and wait for an event only "
            "where data is needed.",
            where=f"streams {', '.join(str(stream) for stream in streams)}; {heavy}",
        )
    else:
        yield finding(
            view,
            "small_grids",
            alone * (1 - covered),
            f"{view.text} runs kernels of few blocks one after the other for {kernels_text(view, spent)}: they have "
            f"blocks for only {percent_text(covered)} of its multiprocessors.",
            [
                (
                    f"{heavy}: {_grid_text(view.work.kinds[names[0]])}, "
                    f"{count_text(view.by_kind[names[0]][0], 'call')}, "
                    f"{time_text(view.by_kind[names[0]][1] / view.by_kind[names[0]][0])} each."
                ),
                "This follows from the sizes of the launches; no counter was read.",
            ],
            _MORE_WORK,
            confidence="medium",
            where=heavy,
        )


def _grid_text(one: WorkKind) -> str:
    blocks = one.grid[0] * one.grid[1] * one.grid[2] if one.grid else 0
    return (
        f"{count_text(blocks, 'block')} of {one.block[0] * one.block[1] * one.block[2] if one.block else 0:,} threads"
    )


def _streams(view: View, kinds: "dict[int, float]") -> dict[int | None, int]:
    """Nanoseconds of work of those kinds by stream, of streams that have a real part of it."""
    sums: dict[int | None, int] = {}
    for number in kinds:
        stream = view.work.kinds[number].stream
        sums[stream] = sums.get(stream, 0) + view.by_kind[number][1]
    whole = sum(sums.values())
    return {stream: spent for stream, spent in sorted(sums.items(), key=lambda row: -row[1]) if spent * 10 >= whole}


def _why_serial(view: View, streams: "dict[int | None, int]") -> list[str]:
    """What orders them, as far as the records say."""
    said = []
    if 7 in streams or any(view.work.kinds[number].stream == 7 for number in view.by_kind):
        said.append("Stream 7 is the default stream: work on it waits for all others, and they for it.")
    waits = sum(
        1 for row in view.program.rows_in(view.name) if view.work.kinds[view.work.kind[row]].name == "stream_wait_event"
    )
    if waits:
        said.append(f"{count_text(waits, 'time')} a stream waited for an event of another.")
    return said


def _by_process(facts: Facts) -> list[list[View]]:
    """The CUDA devices of each process that uses several, busiest first."""
    found: dict[int, list[View]] = {}
    for view in facts.views:
        if view.key[0] == "cuda":
            found.setdefault(id(view.program), []).append(view)
    return [views for views in found.values() if len(views) > 1]


def imbalance(facts: Facts) -> Iterator[Finding]:
    """Devices of one process of which one has most of the work."""
    for views in _by_process(facts):
        busy = [view.parts.kernel for view in views]
        most, mean = max(busy), sum(busy) / len(busy)
        view = views[busy.index(most)]
        if view.share(most - mean) < MUCH:
            continue
        each = ", ".join(f"on {one.text} for {percent_text(one.share(one.parts.kernel))}" for one in views[:8])
        yield finding(
            view,
            "imbalance",
            most - mean,
            f"{view.text} has most of the work: kernels run {each} of the {'steps' if view.steps else 'main part'}.",
            [
                (
                    f"With equal shares each would be busy {time_text(mean / (view.steps.number if view.steps else 1))}"
                    f"{' a step' if view.steps else ''}."
                )
            ],
            "Divide the work by what each device does in a second, and move layers or batches to the ones that wait.",
            where=", ".join(one.text for one in views),
        )


#: Devices take turns where for so much of the time one of them works, and for so little of that another one, too.
_ANY, _BESIDE_IT = 0.8, 0.1


def taking_turns(facts: Facts) -> Iterator[Finding]:
    """Devices of one process that work one after the other, as those with half of a model's layers each."""
    for found in _by_process(facts):
        views = [view for view in found if view.share(view.parts.busy) >= MUCH]
        if len(views) < 2:
            continue
        sums = sum(view.parts.busy for view in views)
        any_ns = total(union(chain.from_iterable(map(_busy, views))))
        view = views[0]
        if view.share(any_ns) < _ANY or sums - any_ns > _BESIDE_IT * sums:
            continue
        each = ", ".join(f"{one.text} {percent_text(one.share(one.parts.busy))}" for one in views[:8])
        yield finding(
            view,
            "devices_take_turns",
            any_ns - sums / len(views),
            f"{len(views)} GPUs take turns: for {each_text(view, any_ns)} one of them works, and hardly ever two.",
            [f"Busy are {each}."],
            "Give them work at the same time: parts of a batch in a pipeline, each layer divided among all of them "
            "(tensor parallelism), or a copy of the model on each. If it fits on one GPU, use one.",
            where=", ".join(one.text for one in views),
        )


def _busy(view: View) -> list[Interval]:
    """When the device worked in its phase."""
    walk = view.walk
    inside = intersect(view.spans, [(walk.first_ns or 0, walk.last_ns or 0)])
    return subtract(inside, list(zip(walk.gaps.start, walk.gaps.end, strict=True)))


def shared_device(facts: Facts) -> Iterator[Finding]:
    """Another process on the same device, by the monitor's samples, and kernels that take turns with its own."""
    mine = {facts.session.meta.get("pid"), *(one.get("pid") for one in processes_of(facts.session))}
    cards = sampled(facts.session)
    for view in facts.feeding if cards else ():
        samples = [
            one
            for card in cards
            if card.number is not None and card.number == view.device
            for one in card.samples
            if any(low <= one.time_ns < high for low, high in view.spans)
        ]
        others: dict[int, str] = {}
        hit = 0
        for sample in samples:
            there = [one for one in sample.processes or () if one.pid not in mine and one.visible is not False]
            busy = [
                one for one in there if (one.memory_used_bytes or 0) >= _AT_WORK_BYTES or (one.gpu_percent or 0) >= 5
            ]
            hit += bool(busy)
            others.update({one.pid: one_line(one.name or "", 40) for one in busy})
        lost = _taking_turns(view) if hit and hit * 4 >= len(samples) else 0.0
        if view.share(lost) < WORTH:
            continue
        named = ", ".join(f"process {pid}{f' ({name})' if name else ''}" for pid, name in list(others.items())[:3])
        yield finding(
            view,
            "shared_device",
            lost,
            f"Another process works on {view.text}: {named}. The program's kernels take turns with that one's, which "
            f"costs {each_text(view, lost)}.",
            [
                f"It was there in {percent_text(hit / len(samples))} of the monitor's samples.",
                (
                    "The same kernels with the same sizes take much longer at times, as they do where two processes "
                    "share a device by time slices."
                ),
            ],
            "Give each process a device of its own, or use MPS so that their kernels run beside each other.",
            confidence="medium",
            where=named,
        )


def _taking_turns(view: View) -> float:
    """Nanoseconds by which kernels took longer than the same ones mostly do, where that is much."""
    work, lengths = view.work, dict[int, list[int]]()
    for row in view.rows:
        lengths.setdefault(work.kind[row], []).append(work.end[row] - work.start[row])
    lost = 0.0
    for number, mine in lengths.items():
        usual = sorted(mine)[len(mine) // 4]
        if work.kinds[number].kind == "kernel" and len(mine) >= 20 and sum(mine) > 1.2 * usual * len(mine):
            lost += sum(mine) - usual * len(mine)
    return lost


def nothing_to_gain(facts: Facts) -> Iterator[Finding]:
    """What the device does when nothing else is wrong: always present where something ran."""
    rows = facts.device_operations
    if not any(row.kind == "kernel" for row in rows):
        if rows:
            yield Finding(
                "copies_only",
                f"No {'pass' if all(row.backend == 'wgpu' for row in rows) else 'kernel'} ran: "
                f"{count_text(sum(row.count for row in rows), 'copy or memset', 'copies and memsets')}, "
                f"{time_text(sum(row.total_ns for row in rows))}.",
                tuple(f"{_called(row.name)}: {time_text(row.total_ns)}." for row in rows[:3]),
                "",
                "medium",
            )
        return
    if not facts.views:
        yield _sums_alone(facts)
    for view in facts.views[:1]:
        whole = view.kernel_ns or 1
        parts = ", ".join(f"{name} {percent_text(spent / whole)}" for name, spent in list(view.families.items())[:3])
        top = list(view.kernels.items())[:3]
        limits = _limits(view)
        title, fix = _limit(view) if limits else _no_fault(view)
        yield Finding(
            "device_bound" if limits else "nothing_to_gain",
            title,
            (
                *([] if view.graphics else [f"Of the kernels' time: {parts}."]),  # passes have no families
                *(
                    f"{view.label(name)}: {percent_text(spent / whole)}, {count_text(count, 'call')}, "
                    f"{time_text(spent / count)} each."
                    for name, (count, spent) in top
                ),
            ),
            fix,
            view.confidence(),
            phase=view.name,
            share=0.0,
            where=view.label(top[0][0]) if top else "",
        )


#: A device is what limits a program that keeps it computing for so much of each step, and idle for no cause so long.
_LIMITS, _BESIDE = 0.85, 0.1
#: Families whose kernels mostly move data; so much of a step is worth a word.
_MOVE = (*ELEMENTWISE, "normalisation", "softmax", "reduction")
_FUSE = 0.25


def _limits(view: View) -> bool:
    """Whether a device limits its program although it is idle for a cause that is worth a word."""
    longest = max(view.share(view.causes[name].total_ns) for name in IDLE if name in view.causes)
    busy = view.told is not None and not view.graphics and view.share(view.parts.kernel) >= _LIMITS
    return busy and WORTH <= longest < _BESIDE


def _limit(view: View) -> tuple[str, str]:
    rows = [(f"{name} kernels" if name == "copy" else name, spent) for name, spent in view.families.items()]
    parts = ", ".join(f"{name} {percent_text(view.share(spent))}" for name, spent in rows[:4])
    title = f"{view.text} is what limits the program: busy {each_text(view, view.parts.busy)}, with {parts}."
    moving = sum(ns for name, (_, ns) in view.kernels.items() if family(name) in _MOVE and not _is_fused(name))
    if view.share(moving) < _FUSE:
        return title, "Use lower precision, a better algorithm, tuned kernels, or more devices."
    return title, (
        f"Fuse what mostly moves data, {percent_text(view.share(moving))} of each step: torch.compile, jax.jit or "
        "kernels of your own. That is worth more than the idle time."
    )


def _no_fault(view: View) -> tuple[str, str]:
    """What is said of a device that no finding is about, and what to do; by how busy it is, and of how much."""
    low, high = view.program.window
    share = view.share(view.parts.busy)
    of = "each step" if view.told is not None else "the main part"
    busy = f"{view.text} is busy {percent_text(share)} of {of}"
    what = "passes" if view.graphics else "kernels"
    if view.told is None and 10 * view.length_ns < high - low:
        little = f"but that is {time_text(view.length_ns)} of the {time_text(high - low)} that the program runs"
        return f"{busy}, {little}: nothing to gain on it.", "Ask a profiler of Python what the host does meanwhile."
    idle = ((view.causes[name].total_ns, words) for name, words in IDLE.items() if name in view.causes)
    rest = sorted(idle, reverse=True)
    named = ", ".join(f"{percent_text(view.share(spent))} {words}" for spent, words in rest[:3] if spent)
    if share < _BUSY and named:
        title = f"{busy}, and no single fault was found. The rest is idle: {named}."
        return title, f"Make the {what} faster: that is worth more than the idle time."
    title = f"{busy}, and no fault was found: only faster {what} would gain more."
    if view.graphics:
        return title, "Try smaller targets, fewer draws, a simpler shader, or passes that run less often."
    long = sum(spent for count, spent in view.kernels.values() if spent >= _LONG_NS * count)
    batch = "" if 2 * long >= view.kernel_ns else ", a larger batch"
    return title, f"Use lower precision, a better algorithm, tuned kernels{batch}, or more devices."


def _called(name: str) -> str:
    """Of an operation, where copies are called by their direction."""
    return f"Copies {WAYS[name]}" if name in WAYS else one_line(name)


def _whose(path: Path, roots: Container[str]) -> str:
    """ "rank 1 · " of a merged session."""
    return f"{one_line(path[0], 40)} · " if path and path[0] in roots else ""


def unusual(facts: Facts) -> Iterator[Finding]:
    """Calls much longer than others like them, after the warm-up."""
    steady = max((row.until_ns for row in facts.warm_ups), default=0)
    rows = [row for row in facts.anomalies if row.kind in DEVICE_KINDS and row.start_ns >= steady]
    excess, roots = sum(row.excess_ns for row in rows), {one["root"] for one in processes_of(facts.session)}
    if rows and excess >= 0.01 * facts.window_ns:
        yield Finding(
            "anomalies",
            f"{count_text(len(rows), 'call')} took {time_text(excess)} longer than usual for such calls.",
            tuple(
                f"{_whose(row.path, roots)}{_called(row.name)}: {time_text(row.duration_ns)} where "
                f"{time_text(row.typical_ns)} is typical of {count_text(row.calls, 'call')} (robust z score "
                f"{row.score:.1f})."
                for row in rows[:3]
            ),
            "Look at these calls on the timeline: at clocks, other processes on the device, and the data.",
            "medium",
            excess,
        )


def device_state(facts: Facts) -> Iterator[Finding]:
    """Clocks held back, and memory nearly full, by the monitor's samples."""
    for card in concerned(facts.session):
        reasons: set[str] = set()
        hit, full = 0, 0.0
        for sample in card.samples:
            harmful = [text for text in sample.clocks.throttle_reasons or () if any(part in text for part in _HARMFUL)]
            hit += bool(harmful)
            reasons.update(harmful)
            used, total = sample.memory.used_bytes, sample.memory.total_bytes
            if used is not None and total:
                full = max(full, used / total)
        if hit and hit * 20 >= len(card.samples):
            yield Finding(
                "throttled",
                f"{card.text} ran at reduced clocks in {percent_text(hit / len(card.samples))} of the samples.",
                (
                    f"Reasons given by the driver: {', '.join(sorted(reasons))}.",
                    "The times of this run are longer than the device needs.",
                ),
                "Check cooling and the power limit.",
                "high",
            )
        if full >= 0.95:
            yield Finding(
                "memory_full",
                f"Memory of {card.text} was {percent_text(full)} full at its peak.",
                ("The next larger batch would not fit.",),
                "Use activation checkpointing or a smaller batch before this fails.",
                "high",
            )


def _sums_alone(facts: Facts) -> Finding:
    """Of a file that an older version saved: when its work ran is not in it."""
    time = max(facts.times, key=lambda time: time.busy_ns)
    kernels = [row for row in facts.device_operations if row.kind == "kernel"][:3]
    return Finding(
        "nothing_to_gain",
        f"{device_text(facts.session.devices, time.backend, time.device)} is busy {percent_text(time.busy_share)} of "
        "the run. Why it was idle is not known: this session holds only sums of its work.",
        tuple(
            f"{one_line(row.name, 60)}: {percent_text(row.share)} of the device's time, "
            f"{count_text(row.count, 'call')}, "
            f"{time_text(row.avg_ns)} each."
            for row in kernels
        ),
        "Record the run again: files of this version hold every kernel.",
        "low",
    )


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    copies,
    small_copies,
    exposed_collectives,
    fp32_math,
    by_names,
    unfused,
    launch_sizes,
    imbalance,
    taking_turns,
    shared_device,
    unusual,
    device_state,
    nothing_to_gain,
)
