"""Findings about a device that stands empty: launches, waits of the host, input, stalls, start-up.

All shares are of the phase that is judged: the steps, where there are such.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import sub

from .._runtime.text import count_text, one_line, percent_text, time_text
from .facts import Facts, Finding
from .program import START_UP, STEADY
from .transfers import SMALL_BYTES
from .view import Cause, View, regular_part, rhythm, unevenness
from .words import among_steps, between_text, each_text, kernel_text, path_text, place_text

#: A finding is worth a sentence from this share of its phase on.
WORTH = 0.05
#: Waiting times this uneven are those of a server for its requests: those of a loader differ less.
_RANDOM = 0.6
#: Imports and initialisation take so long on a slow day, and the first steps of a large model no longer.
_ORDINARY_NS = 10_000_000_000
#: So much of what is empty must lie in a few steps to call it a stall.
_IN_FEW = 0.6


def finding(
    view: View, kind: str, spent: float, title: str, evidence: "list[str]", fix: str, **more: object
) -> Finding:
    saving = round(spent)
    per_step = view.per_step(saving)
    values = {
        "confidence": "high",
        "saving_ns": saving,
        "phase": view.name,
        "share": view.share(saving),
        "step_ns": None if per_step is None else round(per_step),
        **more,
    }
    return Finding(kind, title, tuple(evidence), fix, **values)  # type: ignore[arg-type]


#: What to try where a device waits for the host.
_PREPARE = {
    "graphics": "Record and submit the next frame while the GPU works, or take this work off the path.",
    "input": (
        "Make the next input ready while the GPU works: more loader workers, prefetching, decoding and metrics off the "
        "main thread."
    ),
    "other": "Move this work of the host off the path: to a worker, behind the launches, or to every n-th step.",
}


def launch_bound(facts: Facts) -> Iterator[Finding]:
    """Kernels so short that launching them takes longer."""
    for view in facts.feeding:
        cause = view.causes["launch"]
        calls = sum(count for count, _ in view.kernels.values())
        if view.graphics or view.share(cause.total_ns) < WORTH or calls < 20:  # a submit has many passes
            continue
        where, average = view.text, view.kernel_ns / calls
        length = cause.total_ns / len(cause.gaps)
        if _copies_dominate(view, cause.gaps):
            continue
        heavy = place_text(view, cause.gaps)
        yield finding(
            view,
            "launch_bound",
            cause.total_ns,
            f"{where} stands empty for {each_text(view, cause.total_ns)}, between {among_steps(view, calls, 'kernel')} "
            f"that run {time_text(average)} on average: launching them takes longer than running them.",
            [
                (
                    f"{count_text(len(cause.gaps), 'gap')} of at most 100 µs, {time_text(length)} on average, in "
                    "which the queue was empty."
                ),
                *([f"Most of them lie {heavy}."] if heavy else []),
            ],
            "Launch less: replay the step as a CUDA graph, fuse kernels (torch.compile), use fused or foreach "
            "optimizers, or enlarge the batch.",
            where=heavy or "",
        )


def _copies_dominate(view: View, gaps: Sequence[int]) -> bool:
    """Whether most of the gaps follow copies, so that copying less is the remedy."""
    rows = view.places(gaps)
    whole = sum(spent for *_, spent in rows)
    copies = sum(spent for before, _, _, spent in rows if before.kind == "transfer")
    return copies * 2 > whole


def synchronising(facts: Facts) -> Iterator[Finding]:
    """A device that runs empty because the host waits for it before it launches more."""
    for view in facts.feeding:
        cause = view.causes["synchronising"]
        if view.share(cause.total_ns) < WORTH:
            continue
        calls = _waiting_calls(view, facts)
        evidence = [
            (
                f"{count_text(len(cause.gaps), 'gap')} after waits, until the host was ahead again: "
                f"{time_text(cause.total_ns / len(cause.gaps))} on average{_per_step(view, len(cause.gaps))}."
            ),
            *calls,
        ]
        lines = [wait for wait in facts.waits if wait.source_line]
        if lines:
            called = (
                f"{one_line(wait.source_line or '')} ({wait.count:,}×) for {time_text(wait.total_ns)}"
                for wait in lines[:3]
            )
            evidence.append(f"Called from {', '.join(called)}.")
        where = one_line(lines[0].source_line or "") if lines else between_text(view, cause.gaps)
        yield finding(
            view,
            "synchronising_call",
            cause.total_ns,
            f"{view.text} runs empty for {each_text(view, cause.total_ns)}, because the host "
            f"waits for it before it launches more{f', mostly {where}' if where and not lines else ''}"
            f"{f', mostly at {where}' if lines else ''}.",
            evidence,
            "Read results less often: no .item(), .cpu(), bool(tensor) or synchronize() within a step; keep the value "
            "on the device, and log every n steps.",
            where=where,
        )


def _waiting_calls(view: View, facts: Facts) -> list[str]:
    """Which calls made the host wait, as far as their records say."""
    work, names = facts.work, dict[str, int]()
    for row in view.program.rows_in(view.name):
        one = work.kinds[work.kind[row]]
        if one.kind == "sync" and one.name.endswith("synchronize"):
            names[_CALLS.get(one.name, one.name)] = names.get(_CALLS.get(one.name, one.name), 0) + 1
        elif one.kind == "transfer" and one.direction == "gpu_to_cpu" and work.size[row] <= SMALL_BYTES:
            small = "small copies to the host, as .item(), bool() and .cpu() make them"
            names[small] = names.get(small, 0) + 1
    rows = sorted(names.items(), key=lambda row: -row[1])[:3]
    return [f"The host waited in {', '.join(f'{name} ({n:,}×)' for name, n in rows)}."] if rows else []


_CALLS = {
    "stream_synchronize": "cudaStreamSynchronize",
    "context_synchronize": "cudaDeviceSynchronize (the whole context)",
    "event_synchronize": "cudaEventSynchronize",
}


def _per_step(view: View, count: int) -> str:
    if view.told is None or not count:
        return ""
    each = count / view.told.number
    return f", {each:,.0f} a step" if each >= 1.5 else ""


def host(facts: Facts) -> Iterator[Finding]:
    """Long gaps in which the host launched nothing: input, stalls now and then, no demand."""
    for view in facts.feeding:
        cause = view.causes["host"]
        share = view.share(cause.total_ns)
        if share < WORTH:
            continue
        spent = view.gap_by_step(cause.gaps)
        usual, odd = regular_part(spent)
        in_odd = sum(spent[at] - usual for at in odd)
        uneven = unevenness(spent)
        if spent and odd and len(odd) * 3 <= len(spent) and in_odd >= _IN_FEW * cause.total_ns:
            yield _stall(view, odd, in_odd, [spent[at] - usual for at in odd])
        elif spent and uneven >= _RANDOM and _before_requests(view, cause.gaps):
            yield _no_demand(view, cause.total_ns, spent, uneven)
        else:
            yield _starved(view, cause)


def _before_requests(view: View, gaps: Sequence[int]) -> bool:
    """Whether the gaps lie at one place of the step: before a request's first work, once a request."""
    rows = view.places(gaps)
    whole = sum(spent for *_, spent in rows)
    steps = view.steps
    return bool(rows) and steps is not None and rows[0][3] >= 0.7 * whole and rows[0][2] <= 1.2 * steps.number


def _starved(view: View, cause: Cause) -> Finding:
    total, gaps = cause.total_ns, cause.gaps
    where = place_text(view, gaps)
    into = view.places(gaps)
    before_copy = sum(spent for _, after, _, spent in into if after.direction == "cpu_to_gpu") >= 0.5 * total
    evidence = [
        (
            f"{count_text(len(gaps), 'gap')} longer than 100 µs, {time_text(total / len(gaps))} on average"
            f"{_per_step(view, len(gaps))}."
        )
    ]
    inside = [f"{time_text(spent)} in {path_text(path)}" for path, spent in view.blocks(gaps)[:3]]
    if inside:
        evidence.append(f"The host was meanwhile {'; '.join(inside)}.")
    if before_copy:
        evidence.append("Most of this time ends with a copy to the device: the host was making the next input ready.")
    title = (
        f"{view.text} stands empty for {each_text(view, total)}{f' {where}' if where else ''}, waiting for the host"
        f"{' to make the next input ready' if before_copy else ''}."
    )
    return finding(
        view,
        "starved",
        total,
        title,
        evidence,
        _PREPARE["graphics" if view.graphics else "input" if before_copy else "other"],
        where=where or "",
        confidence="medium" if view.graphics else "high",
    )


def _stall(view: View, odd: "list[int]", spent: float, each: "list[float]") -> Finding:
    steps = view.steps
    assert steps is not None
    every = rhythm(odd)
    often = f"Every {every} steps" if every else f"In {len(odd):,} of {steps.number:,} steps"
    return finding(
        view,
        "periodic_stall",
        spent,
        f"{often} {view.text} stands empty for {time_text(sum(each) / len(each))} longer "
        f"than usual: {percent_text(view.share(spent))} of the time of all steps.",
        [
            f"The other steps take {time_text(steps.median_ns)}.",
            (
                f"{count_text(len(odd), 'step is', 'steps are')} so slow, by number: "
                f"{', '.join(f'{at:,}' for at in odd[:8])}{' …' if len(odd) > 8 else ''} of {steps.number:,}."
            ),
        ],
        "Look at what the program does there: saving, logging, evaluation or Python's garbage collection; do it in "
        "another thread or process, or less often.",
        where=f"every {every} steps" if every else "some steps",
    )


def _no_demand(view: View, spent: float, by_step: "list[int]", uneven: float) -> Finding:
    steps = view.steps
    assert steps is not None
    busy = view.parts.busy / steps.number
    return finding(
        view,
        "no_demand",
        spent,
        f"{view.text} has nothing to do {percent_text(view.share(spent))} of the time, between "
        f"{steps.number:,} requests at uneven intervals: {time_text(busy)} of work each.",
        [
            (
                f"The time without work before a request varies much (coefficient of variation {uneven:.1f}); a "
                "loader's would not."
            ),
            f"Of {time_text(view.length_ns)} it worked {time_text(view.parts.busy)}.",
        ],
        "If these are requests, there is no fault to mend: send it more of them, or give it less of a GPU.",
        confidence="medium",
        saving_ns=None,
        share=view.share(spent),
        step_ns=None,
    )


def interludes(facts: Facts) -> Iterator[Finding]:
    """What stops the loop now and then: a checkpoint, say. Evaluation that keeps the device busy is none."""
    for view in facts.feeding:
        steps, found = view.steps, view.interludes
        if steps is None or not found:
            continue
        lost = [parts.length - parts.kernel for _, parts in found]
        spent = sum(lost)
        whole = view.length_ns + sum(parts.length for _, parts in found)
        if spent < WORTH * whole or spent < 0.5 * sum(parts.length for _, parts in found):
            continue
        numbers = [bisect_right(steps.starts, start) for (start, _), _ in found]
        every = rhythm(numbers)
        often = f"Every {every} steps" if every else f"{count_text(len(found), 'time')}"
        copies = sum(parts.copy for _, parts in found)
        what = f"{time_text(copies / len(found))} of each in copies" if copies * 5 > spent else ""
        yield Finding(
            "periodic_stall",
            f"{often} the loop stops for {time_text(spent / len(found))} without a "
            f"{'pass' if view.graphics else 'kernel'} running: {percent_text(spent / whole)} of the time of the loop.",
            (
                (
                    f"{count_text(len(found), 'interruption')} between {steps.number:,} steps of "
                    f"{time_text(steps.median_ns)}{f', {what}' if what else ''}."
                ),
            ),
            "If it saves or logs: copy to pinned memory without waiting, and write in another thread or process, or do "
            "it less often.",
            "high",
            spent,
            phase=STEADY,
            where=f"every {every} steps" if every else "between steps",
            share=spent / whole,
            step_ns=round(spent / steps.number),
        )


def recompilation(facts: Facts) -> Iterator[Finding]:
    """Kernels that are new within the steady state, each after a pause: compiled, tuned or loaded just then."""
    for view in facts.feeding:
        cause, steps = view.causes["new"], view.steps
        if steps is None or view.share(cause.total_ns) < WORTH or len(cause.gaps) < 3:
            continue
        gaps = view.walk.gaps
        rows = [gaps.after[i] for i in cause.gaps]
        names = [kernel_text(view, view.work.kinds[view.work.kind[row]]) for row in rows if row in view.news]
        some = ", ".join(dict.fromkeys(names[:3]))
        affected = sum(1 for spent in view.gap_by_step(cause.gaps) if spent)
        yield finding(
            view,
            "recompilation",
            cause.total_ns,
            f"{view.text} stands empty for {each_text(view, cause.total_ns)}, each time before "
            "a kernel or a size that had not run before: it is compiled or tuned there.",
            [
                (
                    f"{count_text(len(names), 'kernel')} in {affected:,} of {steps.number:,} steps ran for the "
                    f"first time, {some} among them."
                ),
                f"The pauses before them take {time_text(cause.total_ns / max(1, affected))} in each of these steps.",
            ],
            "Keep shapes fixed (pad to a few sizes), mark dynamic dimensions, cache what is compiled, and switch "
            "autotuning off where shapes change (torch.backends.cudnn.benchmark).",
            where=some,
        )


def allocations(facts: Facts) -> Iterator[Finding]:
    """Memory of the device that is allocated and released in every step."""
    for view in facts.feeding:
        cause = view.causes["allocation"]
        if view.share(cause.total_ns) < WORTH:
            continue
        calls = sum(1 for at in view.allocations if any(low <= at < high for low, high in view.spans))
        yield finding(
            view,
            "allocations",
            cause.total_ns,
            f"{view.text} stands empty for {each_text(view, cause.total_ns)} around "
            f"{among_steps(view, calls, 'call')} of cudaMalloc and cudaFree, which wait for it.",
            [f"{count_text(len(cause.gaps), 'gap')}, {time_text(cause.total_ns / len(cause.gaps))} on average."],
            "Keep memory: allocate once, use a pool (cudaMallocAsync, the framework's allocator), and do not call "
            "empty_cache() in the loop.",
            where="cudaMalloc, cudaFree",
        )


def start_up(facts: Facts) -> Iterator[Finding]:
    """A start-up that takes more time than what it was for."""
    for program in facts.programs:
        low, high = program.window
        spent = sum(end - start for start, end in program.spans(START_UP))
        steps = program.steps
        if steps is None or spent < 0.5 * (high - low) or spent < 2_000_000_000:
            continue
        first = min(max(program.first_ns, low), steps.starts[0])
        unusual = max(first - low, steps.starts[0] - first) - _ORDINARY_NS
        warm = f", with {count_text(steps.warm_up, 'slow first step')} in it" if steps.warm_up else ""
        yield Finding(
            "startup",
            f"Start-up takes {time_text(spent)}, {percent_text(spent / (high - low))} of the run{warm}; the "
            f"{steps.number:,} steps after it take {time_text(sum(map(sub, steps.ends, steps.starts)))}.",
            (
                (
                    "Start-up is all that comes before the first step at full speed: imports, initialisation, loading, "
                    "compilation, tuning."
                ),
            ),
            "For a run as short as this: cache what is compiled, load weights straight to the device, import less. A "
            "long run need not care.",
            "high",
            unusual if unusual > 0 else None,
            phase=START_UP,
            share=spent / (high - low),
        )


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    launch_bound,
    synchronising,
    host,
    interludes,
    recompilation,
    allocations,
    start_up,
)
