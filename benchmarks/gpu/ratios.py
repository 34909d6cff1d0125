"""Middles of paired ratios, with their intervals."""

import itertools
import statistics

FEWEST = 30  # pairs, before an interval is believed


def interval(ratios):
    """95 % interval of the median by order statistics of the binomial distribution."""
    n = len(ratios)
    half = 0.98 * n**0.5
    return [ratios[max(0, int(n / 2 - half))], ratios[min(n - 1, int(n / 2 + half))]]


def estimate(ratios):
    """Hodges-Lehmann estimate and its 95 % interval: middle and quantiles of the Walsh averages, by the normal
    approximation of Wilcoxon's signed ranks."""
    n = len(ratios)
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(ratios, 2))
    edge = max(0, int(n * (n + 1) / 4 - 1.96 * (n * (n + 1) * (2 * n + 1) / 24) ** 0.5))
    return [statistics.median(means), means[edge], means[len(means) - 1 - edge]]


def precise(ratios, enough):
    """Whether the estimate's interval is ``enough`` to either side."""
    if len(ratios) < FEWEST or len(ratios) % (10 if len(ratios) < 200 else 50):  # the estimate takes its time
        return False
    _, low, high = estimate(ratios)
    return high - low <= 2 * enough
