"""What CUPTI adds to the program's launches, estimated from their records: no thread of ours spends it. Pure."""

#: From docs/results/overhead.md: steps of 28 to 38 ms with 870 launches take 10 % longer on H200s while CUPTI records
#: them than without CUPTI in the process. A loop in C that only launches is slowed by a third of this.
LAUNCH_NS = 3_500
#: The share of it that stays while CUPTI's kinds are off: 5 to 7 % of that step.
LEFT = 0.6
#: Of each further record of one launch, as nodes of a graph have. Not measured by itself: replays of 24 kernels take
#: 7 % longer there, so a node costs far less than a launch.
FURTHER_NS = 150


class Launches:
    """Adds up by how long the launches took longer whose records are read while that is ``wanted``."""

    __slots__ = ("_slowed_ns", "graphs", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self.graphs = False  # whether one launch had several records of a kind, as only a graph of several nodes has
        self._slowed_ns = 0

    def add(self, ids: list[int]) -> None:
        """Correlation ids of records of one kind."""
        launches = len(set(ids))
        self.graphs |= launches < len(ids)
        self._slowed_ns += launches * LAUNCH_NS + (len(ids) - launches) * FURTHER_NS

    def take(self) -> int:
        """Nanoseconds since the last call."""
        found, self._slowed_ns = self._slowed_ns, 0
        return found
