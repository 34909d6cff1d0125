"""What CUPTI adds to the program's launches, estimated from their records: no thread of ours spends it. Pure."""

#: From docs/gpu-results.md: a step of 30 ms with 870 launches is 4 to 5 % longer on an H200 while CUPTI records it.
LAUNCH_NS = 1_500
#: Of each further record of one launch, as nodes of a graph have. Not measured by itself: replays of 24 kernels take
#: 7 % longer there, so a node costs far less than a launch.
FURTHER_NS = 150


class Launches:
    """Adds up by how long the launches took longer whose records are read while that is ``wanted``."""

    __slots__ = ("_slowed_ns", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self._slowed_ns = 0

    def add(self, ids: list[int]) -> None:
        """Correlation ids of records of one kind."""
        launches = len(set(ids))
        self._slowed_ns += launches * LAUNCH_NS + (len(ids) - launches) * FURTHER_NS

    def take(self) -> int:
        """Nanoseconds since the last call."""
        found, self._slowed_ns = self._slowed_ns, 0
        return found
