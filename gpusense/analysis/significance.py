"""Is a difference more than chance? The Mann–Whitney test, and corrections for asking many times."""

from collections.abc import Sequence
from math import comb, erfc, sqrt

#: A difference that chance alone makes more often than this is none.
LEVEL = 0.05
#: One that is smaller than this share is called none, however sure it is.
EFFECT = 0.01
#: Runs a side below which times are shown but never decide.
DECISIVE_RUNS = 5
#: Calls, passes or parts a side from which those of one run each are compared.
CALLS = 8

#: Up to this many values in both samples together the distribution is counted out; beyond, it is approximated.
_EXACT = 40


def mann_whitney(left: Sequence[float], right: Sequence[float]) -> float:
    """Two-sided probability of a rank sum at least as far from its mean, if both samples were one.

    Exact for small samples, ties included: every way of dealing the ranks is counted. Otherwise the normal
    approximation with corrections for ties and continuity (Mann and Whitney 1947; Lehmann, Nonparametrics, 1.2–1.3).
    """
    if not left or not right:
        return 1.0
    ranks, ties = _double_ranks([*left, *right])
    observed = sum(ranks[: len(left)])
    if len(ranks) <= _EXACT:
        return _exact(ranks, len(left), observed)
    n, m, size = len(left), len(right), len(ranks)
    mean = n * (size + 1)  # of doubled rank sums
    variance = 4 * n * m / 12 * ((size + 1) - sum(t**3 - t for t in ties) / (size * (size - 1)))
    if variance <= 0:
        return 1.0
    distance = max(0.0, abs(observed - mean) - 1)
    return erfc(distance / sqrt(variance) / sqrt(2))


def _double_ranks(values: list[float]) -> tuple[list[int], list[int]]:
    """Twice the midrank of every value (so that halves stay integers), and the sizes of groups of equal ones."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    ties = []
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for place in order[at:end]:
            ranks[place] = at + 1 + end
        ties.append(end - at)
        at = end
    return ranks, ties


def _exact(ranks: list[int], size: int, observed: int) -> float:
    ways: list[dict[int, int]] = [{0: 1}] + [{} for _ in range(size)]
    for rank in ranks:
        for taken in range(size - 1, -1, -1):
            row = ways[taken + 1]
            for total, count in ways[taken].items():
                row[total + rank] = row.get(total + rank, 0) + count
    mean = size * (len(ranks) + 1)
    distance = abs(observed - mean)
    extreme = sum(count for total, count in ways[size].items() if abs(total - mean) >= distance)
    return extreme / comb(len(ranks), size)


def holm(values: Sequence[float]) -> list[float]:
    """Probabilities adjusted so that any error among all of them has the chosen probability (Holm 1979)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, highest = [0.0] * len(values), 0.0
    for place, at in enumerate(order):
        highest = max(highest, min(1.0, values[at] * (len(values) - place)))
        adjusted[at] = highest
    return adjusted


def benjamini_hochberg(values: Sequence[float]) -> list[float]:
    """Probabilities adjusted so that the chosen share of what is called different is so by chance (1995)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, lowest = [1.0] * len(values), 1.0
    for place in range(len(order) - 1, -1, -1):
        lowest = min(lowest, values[order[place]] * len(values) / (place + 1))
        adjusted[order[place]] = lowest
    return adjusted


def runs_needed(comparisons: int, level: float = 0.05) -> int:
    """Fewest runs a side with which a single clear difference among ``comparisons`` can pass."""
    runs = 2
    while 2 / comb(2 * runs, runs) * max(1, comparisons) > level:
        runs += 1
    return runs
