"""Findings about the host holding the device up: launches, waits, first calls."""

from collections.abc import Callable, Iterator

from .._runtime.text import count_text, device_text, one_line, percent_text, time_text
from .facts import Facts, Finding
from .idle import DeviceIdle
from .launch import LaunchProfile

#: A finding about time must concern at least this share of the run.
_WORTH = 0.05


def launch_bound(facts: Facts) -> Iterator[Finding]:
    """Kernels so short that launching them takes longer."""
    for profile in facts.launches:
        if not profile.launch_bound:
            continue
        idle_share = profile.small_gap_ns / profile.active_ns
        where = device_text(profile.device, profile.backend)
        evidence = [
            (
                f"{count_text(profile.kernels, 'kernel')}, {time_text(profile.avg_ns)} on average; "
                f"{percent_text(profile.short_share)} shorter than 10 µs."
            ),
            (
                f"{where} worked {time_text(profile.busy_ns)} of the {time_text(profile.active_ns)} "
                "between its first and last work."
            ),
        ]
        if profile.small_gaps is not None:
            evidence.append(
                f"{count_text(profile.small_gaps, 'gap')} below 100 µs, median {time_text(profile.median_gap_ns)}, "
                f"{time_text(profile.small_gap_ns)} in all."
            )
        yield Finding(
            "launch_bound",
            f"{where} idles {percent_text(idle_share)} of its active time between "
            f"{count_text(profile.short_kernels, 'kernel')} shorter than 10 µs: launching takes longer than running.",
            tuple(evidence),
            "Launch less: capture the step in a CUDA graph, fuse kernels (torch.compile), or enlarge the batch.",
            "high" if profile.small_gaps is not None else "medium",
            profile.small_gap_ns,
        )


#: For others, and for a program of passes.
_PREPARE = (
    "Prepare the next input while the GPU works (loader workers, prefetch), or take this work off the path.",
    "Record and submit the next frame while the GPU works, or take this work off the path.",
)


def host_bound(facts: Facts) -> Iterator[Finding]:
    """Idle for the host in gaps too long to be launches."""
    profiles = {(profile.backend, profile.device): profile for profile in facts.launches}
    for row in facts.idle:
        profile = profiles.get((row.backend, row.device))
        waiting = _long_wait(row, profile)
        if row.backend == "wgpu" and not row.gaps:
            continue  # what it did between its passes is not known, and not timed as a rule
        if row.seen_ns <= 0 or waiting < _WORTH * row.seen_ns:
            continue
        where = device_text(row.device, row.backend)
        evidence = [f"{time_text(waiting)} of {time_text(row.seen_ns)} empty in gaps of 100 µs and more."]
        if not row.gaps:
            evidence = [
                (
                    f"{time_text(waiting)} of {time_text(row.seen_ns)} empty between first and last work; "
                    "single gaps are not known because short kernels were only summed."
                )
            ]
        inside = [f"{time_text(spent)} in {_path(path)}" for path, spent in row.host_inside[:3]]
        if inside:
            evidence.append(f"All its waits for the host by innermost block: {'; '.join(inside)}.")
        most = f", mostly in {_path(row.host_inside[0][0])}" if row.host_inside else ""
        yield Finding(
            "host_bound",
            f"{where} waits for the host {percent_text(waiting / row.seen_ns)} of the run{most}.",
            tuple(evidence),
            _PREPARE[row.backend == "wgpu"],
            "medium" if not row.gaps or row.backend == "wgpu" else "high",
            waiting,
        )


def _long_wait(row: DeviceIdle, profile: LaunchProfile | None) -> int:
    """Idle time charged to the host, without the small gaps that ``launch_bound`` reports."""
    if not row.gaps:
        return max(0, row.unattributed_ns - (profile.small_gap_ns if profile and profile.launch_bound else 0))
    gaps = (gap.end_ns - gap.start_ns for gap in row.gaps if gap.reason == "host")
    return sum(length for length in gaps if length >= 100_000)


def synchronisation(facts: Facts) -> Iterator[Finding]:
    """A device that runs empty because the host waits for it."""
    for row in facts.idle:
        if row.seen_ns <= 0 or row.synchronisation_ns < _WORTH * row.seen_ns:
            continue
        gaps = [gap for gap in row.gaps if gap.reason == "synchronisation"]
        lines = [
            f"{count_text(len(gaps), 'gap')} right after the host had waited, {_spent(row.synchronisation_ns, row)}."
        ]
        known = [wait for wait in facts.waits if wait.source_line]
        if known:
            called = (
                f"{one_line(wait.source_line or '')} ({wait.count:,}×) for {time_text(wait.total_ns)}"
                for wait in known[:3]
            )
            lines.append(f"Called from {', '.join(called)}.")
        most = f", mostly at {one_line(known[0].source_line or '')}" if known else ""
        yield Finding(
            "synchronisation",
            f"{device_text(row.device, row.backend)} runs empty {percent_text(row.synchronisation_ns / row.seen_ns)} "
            f"of the run because the host waits for it before launching more{most}.",
            tuple(lines),
            "Read results less often: no .item(), .cpu() or synchronize() inside the step; log every n steps.",
            "medium",
            row.synchronisation_ns,
        )


def warm_up(facts: Facts) -> Iterator[Finding]:
    """Passes and calls that were slow because they were the first."""
    for row in facts.warm_ups[:1]:
        share = row.excess_ns / facts.window_ns if facts.window_ns else 0.0
        if share >= _WORTH:
            yield Finding(
                "warm_up",
                f"The first {'pass' if row.passes == 1 else f'{row.passes} passes'} of {_path(row.path)} cost "
                f"{time_text(row.excess_ns)} more than later ones ({percent_text(share)} of the run).",
                (
                    (
                        f"First: {time_text(row.warm_up_ns)} for {row.passes}; then {time_text(row.steady_ns)} a pass "
                        f"(median of {count_text(row.of - row.passes, 'pass', 'passes')})."
                    ),
                ),
                "Compilation and autotuning: cache compiled kernels, keep shapes fixed, leave these out of timings.",
                "high",
                row.excess_ns,
            )
    calls = facts.first_calls
    excess = sum(call.excess_ns for call in calls if call.kind == "kernel")
    if facts.window_ns and excess >= _WORTH * facts.window_ns:
        yield Finding(
            "first_calls",
            f"First calls of {count_text(len(calls), 'operation')} took {time_text(excess)} more than later ones.",
            tuple(
                f"{one_line(call.name)}: {time_text(call.first_ns)}, then {time_text(call.steady_ns)}."
                for call in calls[:5]
            ),
            "Leave the first calls out when comparing; cache what they compile or tune.",
            "high",
            excess,
        )


def _spent(spent: int, row: DeviceIdle) -> str:
    return f"{time_text(spent)} of {time_text(row.seen_ns)}"


def _path(path: tuple[str, ...]) -> str:
    return f"“{one_line(' › '.join(path))}”"


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (launch_bound, host_bound, synchronisation, warm_up)
