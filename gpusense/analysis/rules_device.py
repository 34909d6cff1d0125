"""Findings about the device's own work: copies, collectives, the heaviest kernel, coverage, memory, clocks."""

from collections.abc import Callable, Iterator

from .._records.device_identity import key
from .._records.records import BlockRecord
from .._runtime.text import count_text, device_text, one_line, percent_text, rate_text, size_text, time_text
from .facts import Facts, Finding
from .operation import DEVICE_KINDS, Operation
from .ranks import processes_of, rank_findings, split
from .transfers import TransferGroup

_WORTH = 0.05
_WORTH_NS = 100_000_000
#: Reasons for lower clocks that are not "idle" or "as set".
_HARMFUL = ("thermal", "power_brake", "hw_slowdown", "sw_thermal", "hw_thermal")
_DIRECTIONS = {
    "cpu_to_gpu": "to the GPU",
    "gpu_to_cpu": "to the host",
    "gpu_to_gpu": "between GPUs",
    "on_device": "inside the GPU",
    "cpu_to_cpu": "on the host",
}


def pageable_copies(facts: Facts) -> Iterator[Finding]:
    """Copies that would be faster from or to pinned memory."""
    for row in facts.transfers:
        if not row.pageable or not row.bytes:
            continue
        reached, best = row.bandwidth_bytes_per_s or 0.0, _pinned_rate(facts, row)
        if best is None or best <= reached:
            continue
        saving = round(row.total_ns - row.bytes * 1e9 / best)
        if saving < 0.01 * facts.window_ns:
            continue
        measured = _pinned_here(facts, row) is not None
        evidence = [
            (
                f"{size_text(row.bytes)} in {count_text(row.count, 'copy', 'copies')} took {time_text(row.total_ns)}: "
                f"{rate_text(reached)}."
            ),
            f"Pinned copies of this run reach {rate_text(best)}."
            if measured
            else f"Pinned memory usually reaches four fifths of the link: {rate_text(best)}.",
        ]
        if row.link_bytes_per_s:
            evidence.append(f"The PCIe link carries {rate_text(row.link_bytes_per_s)} in theory.")
        yield Finding(
            "pageable_copies",
            f"Copies {_DIRECTIONS.get(row.direction, row.direction)} use pageable memory and reach "
            f"{rate_text(reached)} where {rate_text(best)} is possible.",
            tuple(evidence),
            "Pin the host memory (DataLoader(pin_memory=True), tensor.pin_memory()) and copy with non_blocking=True.",
            "high" if measured else "medium",
            saving,
        )


def _pinned_here(facts: Facts, row: TransferGroup) -> float | None:
    rates = [
        other.peak_bytes_per_s
        for other in facts.transfers
        if other.pinned and other.direction == row.direction and other.peak_bytes_per_s
    ]
    return max(rates, default=None)


def _pinned_rate(facts: Facts, row: TransferGroup) -> float | None:
    """What pinned copies reached in this run, else four fifths of the link's theoretical rate."""
    measured = _pinned_here(facts, row)
    if measured is not None:
        return measured
    return row.link_bytes_per_s * 0.8 if row.link_bytes_per_s else None


def exposed(facts: Facts) -> Iterator[Finding]:
    """Copying and communicating that nothing computes beside."""
    for row in facts.overlap:
        where = device_text(row.device, row.backend)
        if facts.window_ns and row.copy_exposed_ns >= _WORTH * facts.window_ns:
            yield Finding(
                "exposed_copies",
                f"{where} copies {percent_text(row.copy_exposed_ns / facts.window_ns)} of the run without computing.",
                (
                    (
                        f"{time_text(row.copy_exposed_ns)} of {time_text(row.copy_ns)} of copying had no kernel "
                        f"beside it, {percent_text(row.copy_exposed_ns / row.copy_ns)}."
                    ),
                ),
                "Copy the next batch on a second stream while this one computes (non_blocking=True, pinned memory).",
                "high" if row.collective_ns is not None else "medium",
                row.copy_exposed_ns,
            )
        lost = row.collective_exposed_ns or 0
        if facts.window_ns and lost >= _WORTH * facts.window_ns:
            yield Finding(
                "exposed_collectives",
                f"{where} communicates {percent_text(lost / facts.window_ns)} of the run without computing.",
                (f"{time_text(lost)} of {time_text(row.collective_ns)} in collectives had no other kernel beside it.",),
                "Overlap communication with computation (larger buckets, accumulation), or look for a slow rank.",
                "high",
                lost,
            )


def small_copies(facts: Facts) -> Iterator[Finding]:
    """Many copies whose fixed cost is most of their time."""
    count = sum(row.small for row in facts.transfers)
    spent = sum(row.small_ns for row in facts.transfers)
    if count >= 100 and facts.window_ns and spent >= _WORTH * facts.window_ns:
        total = sum(row.count for row in facts.transfers)
        yield Finding(
            "small_copies",
            f"{count_text(count, 'copy', 'copies')} below 64 KiB take {time_text(spent)}: their fixed cost dominates.",
            (f"{percent_text(count / total)} of all copies are that small.",),
            "Join them into few large ones, or keep the data on the device.",
            "medium",
            spent // 2,
        )


def heaviest(facts: Facts) -> Iterator[Finding]:
    """What the device does when nothing else is wrong: always present where kernels ran."""
    kernels = [row for row in facts.device_operations if row.kind == "kernel"]
    if not kernels:
        rows = facts.device_operations
        if rows:
            yield Finding(
                "copies_only",
                f"{_NOTHING_RAN[all(row.backend == 'wgpu' for row in rows)]}: "
                f"{count_text(sum(row.count for row in rows), 'copy or memset', 'copies and memsets')}, "
                f"{time_text(sum(row.total_ns for row in rows))}.",
                tuple(f"{one_line(row.name)}: {time_text(row.total_ns)}." for row in rows[:3]),
                "",
                "medium",
            )
        return
    busiest = max(facts.times, key=lambda time: time.busy_ns)
    heavy = _by_name(kernels)
    top, share, _, _ = heavy[0]
    of = "the time seen" if busiest.unseen_ns > 0.01 * busiest.window_ns else "the run"
    yield Finding(
        "heaviest_kernel",
        f"{device_text(busiest.device, busiest.backend)} is busy {percent_text(busiest.busy_share)} of {of}; "
        f"{one_line(top, 60)} takes {percent_text(share)} of the GPU time.",
        tuple(
            f"{one_line(name)}: {percent_text(part)}, {count_text(count, 'call')}, {time_text(spent / count)} each."
            for name, part, count, spent in heavy[:3]
        ),
        "To go faster, make this pass cheaper or run it less often: smaller targets, fewer draws, a simpler shader."
        if all(row.backend == "wgpu" for row in kernels)
        else "To go faster, make this kernel faster or call it less: lower precision, a fused or tuned implementation.",
        "high",
        None,
    )


def _by_name(kernels: list[Operation]) -> list[tuple[str, float, int, int]]:
    """(name, share of the GPU time, calls, time) of the kernels of all devices, heaviest first."""
    sums: dict[str, tuple[str, float, int, int]] = {}
    for row in kernels:
        _, share, count, spent = sums.get(row.name, ("", 0.0, 0, 0))
        sums[row.name] = row.name, share + row.share, count + row.count, spent + row.total_ns
    return sorted(sums.values(), key=lambda row: -row[3])


_NOTHING_RAN = ("No kernel ran", "No pass ran")


def mostly_nothing(facts: Facts) -> Iterator[Finding]:
    """Most of the run is none of the device's: start-up, imports, loading. What it did besides says little then."""
    row = max(facts.idle, key=lambda row: row.compute_ns, default=None)
    if row is None or row.no_work_ns < max(row.window_ns // 2, _WORTH_NS) or row.no_work_ns == row.window_ns:
        return
    rest = row.seen_ns - row.no_work_ns
    parts = [(name, row.part(reason) / rest) for reason, name in _DID if row.part(reason)]
    did = ", ".join(f"{name} {percent_text(share)}" for name, share in sorted(parts, key=lambda part: -part[1])[:3])
    outside, inside = "before its first and after its last work", "between them"
    fix = "Let it run longer, or put a trace() block around the part that matters"
    if any(type(record) is BlockRecord for record in facts.session.records):
        outside, inside = "outside any block", "inside blocks"
        fix = "Let the part that matters run longer, or look at its blocks alone"
    yield Finding(
        "mostly_nothing",
        f"{device_text(row.device, row.backend)} had nothing to do {percent_text(row.no_work_ns / row.window_ns)} of "
        f"the run: {time_text(row.no_work_ns)} of {time_text(row.window_ns)} are {outside}.",
        (f"In the {time_text(rest)} {inside} it {did}.",),
        f"{fix}: start-up and imports count here.",
        "high",
    )


_DID = (
    ("compute", "computed"),
    ("collective", "communicated"),
    ("copy", "copied"),
    ("synchronisation", "stood empty after a wait of the host"),
    ("host", "waited for the host"),
    ("unattributed", "stood empty"),
)


def low_coverage(facts: Facts) -> Iterator[Finding]:
    """Kernels too small for the device."""
    for row in facts.coverage:
        # Half of the kernel time must be known, and the device must be busy enough for its launches to matter.
        if row.considered_ns * 2 < row.kernel_ns or row.while_busy >= 0.5:
            continue
        if row.considered_ns < _WORTH * facts.window_ns:
            continue
        yield Finding(
            "low_coverage",
            f"While kernels run on GPU {row.device}, their blocks cover {percent_text(row.while_busy)} of it.",
            (
                f"{count_text(row.small_kernels, 'kernel')} could not fill the device once.",
                "Estimated from launch sizes and the device's limits, without hardware counters.",
            ),
            "Give each launch more work (larger batch, fewer splits), or run independent kernels on several streams.",
            "medium",
        )


def unusual(facts: Facts) -> Iterator[Finding]:
    """Calls much longer than others like them, after the warm-up."""
    steady = max((row.until_ns for row in facts.warm_ups), default=0)
    rows = [row for row in facts.anomalies if row.kind in DEVICE_KINDS and row.start_ns >= steady]
    excess = sum(row.excess_ns for row in rows)
    if rows and excess >= 0.01 * facts.window_ns:
        yield Finding(
            "anomalies",
            f"{count_text(len(rows), 'call')} took {time_text(excess)} longer than calls like them do.",
            tuple(
                f"{one_line(row.name)}: {time_text(row.duration_ns)} where {time_text(row.typical_ns)} is typical "
                f"(robust z {row.score:.1f}, {count_text(row.calls, 'call')})."
                for row in rows[:3]
            ),
            "Look at these calls on the timeline: clocks, another process on the device, or different data.",
            "medium",
            excess,
        )


def device_state(facts: Facts) -> Iterator[Finding]:
    """Clocks held back, and memory nearly full, by the monitor's samples."""
    throttled: dict[tuple[int, str], set[str]] = {}
    samples: dict[tuple[int, str], list[int]] = {}
    full: dict[tuple[int, str], float] = {}
    for sample in facts.session.metrics:
        device = key(sample.device)
        reasons = {text for text in sample.clocks.throttle_reasons or () if any(part in text for part in _HARMFUL)}
        row = samples.setdefault(device, [0, 0])
        row[0] += 1
        row[1] += bool(reasons)
        throttled.setdefault(device, set()).update(reasons)
        used, total = sample.memory.used_bytes, sample.memory.total_bytes
        if used is not None and total:
            full[device] = max(full.get(device, 0.0), used / total)
    for device, (count, hit) in samples.items():
        if hit * 20 >= count and hit:
            yield Finding(
                "throttled",
                f"GPU {device[0]} ran at reduced clocks in {percent_text(hit / count)} of the samples.",
                (f"Reasons given by the driver: {', '.join(sorted(throttled[device]))}.",),
                "Check cooling and the power limit; timings of this run are slower than the device can be.",
                "high",
            )
        if full.get(device, 0.0) >= 0.95:
            yield Finding(
                "memory_full",
                f"Memory of GPU {device[0]} was {percent_text(full[device])} full at its peak.",
                ("The next larger batch would not fit.",),
                "Use activation checkpointing or a smaller batch before this fails.",
                "high",
            )


def across_ranks(facts: Facts) -> Iterator[Finding]:
    """What only a merged session of several processes shows."""
    if len(processes_of(facts.session)) > 1:
        yield from rank_findings(split(facts.session))


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    pageable_copies,
    exposed,
    small_copies,
    low_coverage,
    unusual,
    across_ranks,
    device_state,
    mostly_nothing,
    heaviest,
)
