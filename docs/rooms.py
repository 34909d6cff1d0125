"""Draws ``docs/rooms.svg``, the picture of architecture.md, from the package's imports: ``python docs/rooms.py``.

An arrow leads from a room to one below it that it imports. What follows from other arrows is left out.
``tests/rules/test_rooms.py`` compares the file with what this draws.
"""

import pathlib
import sys
from collections.abc import Iterator
from itertools import combinations, pairwise

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.tree import arrows  # noqa: E402

PICTURE = HERE / "rooms.svg"

#: Where a room stands from left to right, and what it is.
PLACES = {
    "__main__": (2.2, "python -m gpusense"),
    "cli": (2.2, "a file a verb"),
    "doctor": (3.8, "what is missing, why"),
    "wgpu": (3.2, "traced helpers"),
    "exporters": (2.2, "OpenTelemetry"),
    "integrations": (0.6, "torch, wgpu-py, pytest"),
    "testing": (3.2, "scripted devices"),
    "monitor": (2.2, "devices, over time"),
    "cuda": (4.0, "your own kernels"),
    "_tracing": (1.2, "blocks of the program"),
    "report": (0.0, "text, JSON, HTML, …"),
    "analysis": (0.0, "session → findings"),
    "_capture": (1.2, "recorder and stores"),
    "session": (0.7, "file ↔ records"),
    "backends": (2.0, "CUPTI, NVML, …"),
    "_aggregation": (1.2, "keep or count"),
    "_attribution": (1.2, "whose work it is"),
    "_decode": (1.2, "bytes → columns"),
    "_capi": (2.8, "C functions"),
    "_records": (2.5, "the data"),
    "_runtime": (1.5, "threads, fork, settings"),
}
#: What programs may import.
PUBLIC = {"cuda", "doctor", "exporters", "integrations", "monitor", "session", "testing", "wgpu"}
WIDTH, HEIGHT, STEP_X, STEP_Y = 142, 42, 160, 68
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img">
<title>The rooms of gpusense and who imports whom, bottom to top</title>
<style>
.box {{ fill: #dbe7f5; stroke: #5b7ea6 }} .public {{ fill: #e2f0d9; stroke: #6b9a52 }}
.arrow {{ fill: none; stroke: #888; stroke-width: 1.5 }} .tip {{ fill: #888 }}
text {{ font-family: system-ui, sans-serif; text-anchor: middle; fill: #1b2733 }}
.name {{ font-size: 15px; font-weight: 600 }} .what {{ font-size: 11.5px }}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>
"""


def needed(all_arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Arrows that do not follow from others."""
    below: dict[str, set[str]] = {}
    for source, target in all_arrows:
        below.setdefault(source, set()).add(target)

    def reached(room: str) -> set[str]:
        return {room}.union(*map(reached, below.get(room, ())))

    return {
        (source, target)
        for source, target in all_arrows
        if not any(target in reached(other) for other in below[source] - {target})
    }


def rows(some: set[tuple[str, str]]) -> dict[str, int]:
    """How high each room stands: above all that it imports."""
    found = dict.fromkeys(PLACES, 0)
    for _ in PLACES:
        for source, target in some:
            found[source] = max(found[source], found[target] + 1)
    return found


def middle(room: str) -> float:
    return 80 + STEP_X * PLACES[room][0]


class Picture:
    def __init__(self, some: set[tuple[str, str]]) -> None:
        self.arrows = some
        self.height = rows(some)
        self.top = max(self.height.values())
        for room, other in combinations(PLACES, 2):
            apart = abs(middle(room) - middle(other)) > WIDTH
            assert apart or self.height[room] != self.height[other], f"{room} covers {other}: change PLACES"

    def upper(self, row: int) -> float:
        return 4 + STEP_Y * (self.top - row)

    def beside(self, x: float, to_x: float, row: int) -> float:
        """The nearest place to ``x`` in which a line passes the row without touching a room."""
        for room in PLACES:
            if self.height[room] == row and abs(x - middle(room)) < WIDTH / 2 + 8:
                x = middle(room) + (WIDTH / 2 + 9) * (1 if to_x > middle(room) else -1)
        return x

    def way(self, source: str, target: str) -> Iterator[tuple[float, float]]:
        """Straight down beside what stands between, and across in the gaps between rows."""
        x, to_x = middle(source), middle(target)
        if x != to_x:  # arrows to and from several rooms leave and arrive beside each other
            shift = max(-45.0, min(45.0, (to_x - x) / 4))
            x, to_x = x + shift, to_x - shift
        yield x, self.upper(self.height[source]) + HEIGHT
        for row in range(self.height[source] - 1, self.height[target], -1):
            x = self.beside(x, to_x, row)
            yield x, self.upper(row)
            yield x, self.upper(row) + HEIGHT
        yield to_x, self.upper(self.height[target])

    def lines(self) -> Iterator[str]:
        for source, target in sorted(self.arrows):
            points = list(self.way(source, target))
            path = f"M{points[0][0]:g} {points[0][1]:g}"
            for (x, y), (to_x, to_y) in pairwise(points):
                half = (y + to_y) / 2
                path += f"C{x:g} {half:g} {to_x:g} {half:g} {to_x:g} {to_y:g}" if x != to_x else f"V{to_y:g}"
            yield f'<path class="arrow" marker-end="url(#tip)" d="{path}"/>'
        for room, (_, what) in PLACES.items():
            kind = "box public" if room in PUBLIC else "box"
            x, y = middle(room), self.upper(self.height[room])
            yield f'<rect class="{kind}" x="{x - WIDTH / 2:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
            yield f'<text class="name" x="{x:g}" y="{y + 18:g}">{room}</text>'
            yield f'<text class="what" x="{x:g}" y="{y + 34:g}">{what}</text>'


def drawn() -> str:
    picture = Picture(needed(arrows()))
    return HEAD.format(800, STEP_Y * picture.top + HEIGHT + 8) + "\n".join(picture.lines()) + "\n</svg>\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn(), "utf-8")
