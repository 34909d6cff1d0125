"""When records were lost, so that a block that was open then does not count as complete. Pure."""

from collections.abc import Mapping

#: Counters that grow where records of GPU work are lost, and what one says.
WORDS = {
    "dropped": "{:,} records were dropped by the driver",
    "missed": "{:,} requests of CUPTI found no free buffer",
    "bytes_dropped": "{:,} bytes did not get into the session file",
}
MAX_KEPT = 1_000  # times at which something was lost; later ones become one


class Losses:
    """By one thread at a time."""

    def __init__(self, now_ns: int) -> None:
        self._counts: dict[str, int] = {}
        self._looked_ns = now_ns
        self._found: dict[str, list[tuple[int, int, int]]] = {}  # by counter: from, to, how many

    def look(self, counts: Mapping[str, int], now_ns: int) -> None:
        """Notes what has become more since the last look."""
        for name in WORDS:
            count = counts.get(name, 0)
            more = count - self._counts.get(name, 0)
            self._counts[name] = count
            if more > 0:
                found = self._found.setdefault(name, [])
                since, before = self._looked_ns, 0
                if found and (found[-1][1] == since or len(found) >= MAX_KEPT):
                    since, _, before = found.pop()
                found.append((since, now_ns, before + more))
        self._looked_ns = now_ns

    def between(self, start_ns: int, end_ns: int) -> str:
        """What was lost then, in words; "" where nothing was. Of a time that lies in there in part, all of it."""
        return ", ".join(WORDS[name].format(count) for name, count in self.counts(start_ns, end_ns).items())

    def counts(self, start_ns: int, end_ns: int) -> dict[str, int]:
        """The same as numbers, by counter."""
        counts = {
            name: sum(lost for since, until, lost in found if since < end_ns and until > start_ns)
            for name, found in self._found.items()
        }
        return {name: count for name, count in counts.items() if count}
