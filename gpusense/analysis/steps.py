"""The loop of a program, found from the order of its launches alone: how many steps, how long, since when. Pure.

A training step, a token or a request launches the same kernels in the same order each time. So some pair of launches
that follow each other comes once a step, always about so many launches after the time before: it is the *anchor*. The
steps are what lies between its occurrences. Times are not used to find it: a step that waits for its data is as long
in launches as any other.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate, chain, compress, pairwise
from operator import add, sub
from typing import NamedTuple

from .anomalies import median

#: A loop has at least so many steps.
LEAST = 4
#: Steps may differ by so much in launches: by a fiftieth, and by two.
_TOLERANCE, _FEW = 50, 2
#: Launches from the middle of a run that are looked at to find the loop; then all are.
_MOST = 200_000
#: Loops that explain so much of the time that the best explains are looked at as well: one may lie in another.
_NEARLY = 0.75
#: A loop around another is the one that a person means where so much of what it launches is launched nowhere else:
#: an optimizer after micro-batches, the head of a model after its layers. What is saved or logged now and then is less.
_OWN_SHARE, _OWN_LEAST = 0.015, 3


class Loop(NamedTuple):
    """Steps of one loop: ``starts`` and ``ends`` of each, in nanoseconds. Where something else came between two of
    them, the later one begins after the one before it has ended."""

    period: int  # launches in a step, most often
    starts: "array[int]"
    ends: "array[int]"
    inner: "int | None" = None  # how often a smaller loop runs in each step: micro-batches, layers; None: not at all
    inner_ns: "float | None" = None  # how long that takes each time, the median

    @property
    def steps(self) -> int:
        """How many."""
        return len(self.starts)

    @property
    def lengths(self) -> list[int]:
        """Nanoseconds of each step."""
        return list(map(sub, self.ends, self.starts))


class _Candidate(NamedTuple):
    pair: int
    period: int
    places: "list[int]"  # where it occurs, of those occurrences that a fitting distance follows
    nexts: "list[int]"
    score: float  # how much it explains: the share of all work times that of the time in which kernels ran
    times: int  # that it occurs in all


def looked_at(launches: int) -> tuple[int, int]:
    """Of so many launches the first, and the one behind the last, of those that are looked at to find a loop."""
    first = max(0, (launches - _MOST) // 2)
    return first, min(first + _MOST, launches)


def find_loop(
    symbols: "array[int]",
    starts: Sequence[int],
    ends: Sequence[int],
    ran: Sequence[int],
    rows: Sequence[int],
    is_kernel: Sequence[bool],
) -> Loop | None:
    """The loop of launches in their order; None where nothing repeats itself at least four times.

    ``symbols``: what each launch is, as small numbers; ``starts`` and ``ends``: of its work on the device; and of those
    that are looked at ``ran``: how long its kernels ran, and ``rows``: how many pieces of work it was, more than one of
    a graph. ``is_kernel``: by symbol, whether it is work of the device itself.
    """
    first, last = looked_at(len(symbols))
    part = slice(first, last)
    found = _candidates(symbols[part], [array("q", accumulate(one, initial=0)) for one in (ran, rows)])
    best = max((one.score for one in found), default=0.0)
    if not best:
        return None
    found = [one for one in found if one.score >= _NEARLY * best]
    width = max(symbols[part]) + 1
    inner, outer = _levels(found, is_kernel, width)
    anchor = _anchor(outer, starts[part])
    loop = _steps(anchor, _places(symbols, divmod(anchor.pair, width)), starts, ends)
    if loop is None or inner is outer:
        return loop
    small = _anchor(inner, starts[part])
    spans = [starts[first + b] - starts[first + a] for a, b in zip(small.places, small.nexts, strict=True)]
    return loop._replace(inner=round(anchor.period / small.period), inner_ns=median(spans))


def _places(symbols: "array[int]", pair: tuple[int, int]) -> list[int]:
    """Where the second of two launches is that follow each other."""
    data, wanted, width = symbols.tobytes(), array(symbols.typecode, pair).tobytes(), symbols.itemsize
    places, at = [], data.find(wanted)
    while at >= 0:
        whole = at % width == 0
        if whole:
            places.append(at // width + 1)
        at = data.find(wanted, at + (width if whole else 1))
    if pair[0] == pair[1]:  # one kernel again and again: the first of them has another one before it
        places.insert(0, places[0] - 1)
    return places


def _steps(anchor: _Candidate, places: list[int], starts: Sequence[int], ends: Sequence[int]) -> Loop | None:
    """The steps between the places of an anchor."""
    low, high = _fitting(anchor.period)
    begins, stops, gaps = array("q"), array("q"), []
    at = places[0]
    for place in places[1:]:
        distance = place - at
        if distance < low:  # once more within a step
            continue
        begins.append(starts[at])
        stops.append(starts[place])
        if distance > high:  # and something else after this step
            gaps.append(len(begins) - 1)
        at = place
    if at + low <= len(starts):  # the last step has no successor
        begins.append(starts[at])
        stops.append(max(ends[at : at + anchor.period]))
    while gaps and gaps[0] == 0:  # before the loop
        del begins[0], stops[0]
        gaps = [gap - 1 for gap in gaps[1:]]
    while gaps and gaps[-1] == len(begins) - 1:
        del begins[-1], stops[-1]
        gaps.pop()
    if len(begins) - len(gaps) < LEAST:
        return None
    usual = round(median([stops[i] - begins[i] for i in sorted({*range(len(begins))} - {*gaps})]))
    for gap in gaps:
        stops[gap] = min(stops[gap], begins[gap] + usual)
    return Loop(anchor.period, begins, stops)


def _fitting(period: int) -> tuple[int, int]:
    """The least and the most launches of a step."""
    spare = max(period // _TOLERANCE, _FEW if period > 4 * _FEW else 0)
    return period - spare, period + spare


def _candidates(symbols: Sequence[int], before_each: "list[array[int]]") -> list[_Candidate]:
    """Pairs of launches that come at steady distances. ``before_each``: how long kernels ran before each launch, and
    how many pieces of work there were."""
    if len(symbols) < LEAST + 1:
        return []
    width = max(symbols) + 1
    places: defaultdict[int, list[int]] = defaultdict(list)
    for at, pair in enumerate(map(add, map(width.__mul__, chain((-1,), symbols)), symbols)):
        places[pair].append(at)
    found = []
    for pair, where in places.items():
        if len(where) > LEAST:
            one = _candidate(pair, where, before_each)
            if one is not None:
                found.append(one)
    return found


def _candidate(pair: int, where: list[int], before_each: "list[array[int]]") -> _Candidate | None:
    before, after = where[:-1], where[1:]
    distances = list(map(sub, after, before))
    least, most = min(distances), max(distances)
    # Of distances that are as frequent the longest: what comes twice a step has one within and one between.
    period = least if least == most else max(Counter(distances).items(), key=lambda row: (row[1], row[0]))[0]
    low, high = _fitting(period)
    if least < low or most > high:
        fitting = [low <= distance <= high for distance in distances]
        before, after = list(compress(before, fitting)), list(compress(after, fitting))
    if len(before) < LEAST:
        return None
    score = 1.0
    for column in before_each:
        if column[-1]:
            spent = sum(map(column.__getitem__, after)) - sum(map(column.__getitem__, before))
            score *= spent / column[-1]
    return _Candidate(pair, period, before, after, score, len(where))


def _levels(
    found: list[_Candidate], is_kernel: Sequence[bool], width: int
) -> tuple[list[_Candidate], list[_Candidate]]:
    """The candidates of the loop within, and of the loop that a person would call the steps; the same where there is
    one alone."""
    classes: list[list[_Candidate]] = []
    for one in sorted(found, key=lambda one: one.period):
        if classes and one.period <= classes[-1][0].period * 1.1 + 1:
            classes[-1].append(one)
        else:
            classes.append([one])
    inner = chosen = classes[0]
    weight = len(chosen)
    for around in classes[1:]:
        own = sum(is_kernel[one.pair % width] and is_kernel[one.pair // width] for one in around)
        if around[0].period >= 1.8 * chosen[0].period and own >= max(_OWN_LEAST, _OWN_SHARE * weight):
            inner, chosen, weight = chosen, around, weight + len(around)
    return (inner, chosen) if inner is not chosen else (chosen, chosen)


def _anchor(same: list[_Candidate], starts: Sequence[int]) -> _Candidate:
    """Of pairs with one period, as far as they are launched in the loop alone, the one before which the device waits
    longest: there a step begins."""
    most = max(2 * len(one.places) - one.times for one in same)
    often = [one for one in same if 2 * len(one.places) - one.times >= most - 1][:64]

    def pause(one: _Candidate) -> float:
        gaps = [starts[at] - starts[at - 1] for at in one.places[:50] if at]
        return sum(gaps) / len(gaps) if gaps else 0.0

    return max(often, key=pause)


def steady(loop: Loop) -> tuple[int, int]:
    """The first step of the steady state and the step behind its last: slow ones at the beginning are left out."""
    lengths = loop.lengths
    usual = median(lengths[len(lengths) // 2 :] or lengths)
    first = 0
    while first < len(lengths) // 2 and lengths[first] > 1.3 * usual:
        first += 1
    return first, len(lengths)


def runs(loop: Loop) -> list[tuple[int, int]]:
    """Numbers of steps that follow each other without anything between: first, and behind the last."""
    breaks = [at + 1 for at, (end, start) in enumerate(zip(loop.ends, loop.starts[1:], strict=False)) if start > end]
    return list(pairwise([0, *breaks, loop.steps]))
