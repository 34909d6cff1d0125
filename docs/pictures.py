"""Makes every picture of the documentation anew: ``python docs/pictures.py``.

From the run that ``gpusense demo`` shows, and for ``top`` from one of the exam's recordings, which is longer. It
needs tmux and Chromium; a picture whose tool is missing stays as it is. What a terminal shows becomes SVG, what a
browser shows a PNG with a palette. One picture may have 150 kB, all together 600 kB.
"""

import html
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import zlib
from collections import Counter
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PICTURES = HERE / "pictures"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.browser import Browser, find_browser  # noqa: E402

GPUSENSE = [sys.executable, "-m", "gpusense"]
LONG_RUN = "late_rank.rank0.gpusense"


def output(*arguments: str) -> str:
    done = subprocess.run([*GPUSENSE, *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{arguments}: {done.stderr}")
    return done.stdout + done.stderr


# -- a terminal's text as SVG --------------------------------------------------------------------------------------

WIDTH, HEIGHT = 8.4, 18  # of a character
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
PALETTE = ("#21262d", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#c9d1d9")
COLOURS = dict(zip("01234567", PALETTE, strict=True))
ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
WORDS = re.compile(r"\S+(?: \S+)*")  # what stands in a column of its own is placed by itself
COLUMNS = 104


def pieces(line: str, style: dict[str, str]) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Column, text and style of each part of a line; ``style`` goes on from line to line, as in a terminal."""
    column = 0
    for number, part in enumerate(ESCAPE.split(line)):
        if number % 2 == 0:
            for words in WORDS.finditer(part):
                yield column + words.start(), words[0], dict(style)
            column += len(part)
            continue
        for code in part.split(";"):
            if code in ("", "0"):
                style.clear()
            elif code == "1":
                style["font-weight"] = "bold"
            elif code == "2":
                style["opacity"] = "0.65"
            elif code == "39":
                style.pop("fill", None)
            elif len(code) == 2 and code[0] in "39" and code[1] in COLOURS:
                style["fill"] = COLOURS[code[1]]


def terminal(text: str, command: str) -> str:
    lines = [f"\x1b[2m$\x1b[0m \x1b[1m{command}\x1b[0m"]
    for line in text.rstrip().splitlines():
        wrapped = (
            textwrap.wrap(line, COLUMNS, subsequent_indent="  ") if len(ESCAPE.sub("", line)) > COLUMNS else [line]
        )
        lines += wrapped
    columns = max(len(ESCAPE.sub("", line)) for line in lines)
    width, height = columns * WIDTH + 32, len(lines) * HEIGHT + 32
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">',
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117"/>',
        f'<g font-family="{FONTS}" font-size="14" fill="#c9d1d9" xml:space="preserve">',
    ]
    style: dict[str, str] = {}
    for number, line in enumerate(lines):
        for column, part, how in pieces(line, style):
            place = f'x="{16 + column * WIDTH:.1f}" y="{30 + number * HEIGHT}"'
            # Whatever font is there, each part is as wide as it is in a terminal.
            length = f'textLength="{len(part) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"'
            attributes = "".join(f' {name}="{value}"' for name, value in how.items())
            drawn.append(f"<text {place} {length}{attributes}>{html.escape(part)}</text>")
    return "\n".join([*drawn, "</g>", "</svg>", ""])


def screen(folder: pathlib.Path, command: list[str], keys: list[str], width: int, height: int) -> str | None:
    """What a command draws on a terminal of that size after some keys."""
    if not (tmux := shutil.which("tmux")):
        return None
    server = [tmux, "-f", "/dev/null", "-S", str(folder / "tmux")]
    subprocess.run([*server, "new-session", "-d", "-x", str(width), "-y", str(height), *command], cwd=ROOT, check=True)
    try:
        time.sleep(3)
        subprocess.run([*server, "send-keys", *keys], check=True)
        time.sleep(1)
        return subprocess.run([*server, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True).stdout
    finally:
        subprocess.run([*server, "kill-server"], check=False)


# -- a browser's page as a PNG with a palette ----------------------------------------------------------------------


def pixels(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and RGB of what Chromium writes: 8 bits, with or without alpha, not interlaced."""
    width, height, _, colour = struct.unpack_from(">IIBB", png, 16)
    size = {2: 3, 6: 4}[colour]
    packed, at = b"", 8
    while at < len(png):
        (length,), kind = struct.unpack_from(">I", png, at), png[at + 4 : at + 8]
        if kind == b"IDAT":
            packed += png[at + 8 : at + 8 + length]
        at += length + 12
    raw, stride = zlib.decompress(packed), width * size
    before, found = bytearray(stride), bytearray()
    for row in range(height):
        filtered = raw[row * (stride + 1)]
        line = bytearray(raw[row * (stride + 1) + 1 : (row + 1) * (stride + 1)])
        for i in range(stride):
            left = line[i - size] if i >= size else 0
            line[i] = (line[i] + predicted(filtered, left, before[i], before[i - size] if i >= size else 0)) & 255
        found += line
        before = line
    if size == 4:
        del found[3::4]
    return width, height, bytes(found)


def predicted(filtered: int, left: int, above: int, corner: int) -> int:
    """By the five filters of the PNG specification."""
    if filtered == 4:
        guess = left + above - corner
        distances = abs(guess - left), abs(guess - above), abs(guess - corner)
        return (left, above, corner)[distances.index(min(distances))]
    return (0, left, above, (left + above) // 2)[filtered]


def with_palette(png: bytes) -> bytes:
    """The same picture in its 255 most frequent colours; others become the nearest of them."""
    width, height, rgb = pixels(png)
    seen = Counter(zip(rgb[::3], rgb[1::3], rgb[2::3], strict=True))
    palette = [colour for colour, _ in seen.most_common(255)]
    place = {colour: number for number, colour in enumerate(palette)}
    for colour in seen:
        if colour not in place:
            place[colour] = min(
                range(len(palette)),
                key=lambda n: sum((a - b) ** 2 for a, b in zip(palette[n], colour, strict=True)),
            )
    rows = bytes(place[colour] for colour in zip(rgb[::3], rgb[1::3], rgb[2::3], strict=True))
    lines = b"".join(b"\0" + rows[y * width : (y + 1) * width] for y in range(height))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(value for colour in palette for value in colour)),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return png[:8] + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


# -- the pictures ----------------------------------------------------------------------------------------------------


def texts(folder: pathlib.Path) -> None:
    answer = output("demo", "-o", str(folder / "demo.gpusense")).replace(f"{folder}/", "")
    (PICTURES / "answer.svg").write_text(terminal(answer, "gpusense demo -o demo.gpusense"), "utf-8")
    with tarfile.open(ROOT / "tests/exam/sessions.tar.xz") as archive:
        (folder / LONG_RUN).write_bytes(archive.extractfile(LONG_RUN).read())
    drawn = screen(folder, [*GPUSENSE, "top", "--replay", str(folder / LONG_RUN)], ["Right"] * 3, 92, 26)
    if drawn:
        (PICTURES / "top.svg").write_text(terminal(drawn, "gpusense top --replay run.gpusense"), "utf-8")


def photographed(browser: Browser, folder: pathlib.Path, name: str, heading: str = "", height: int = 900) -> None:
    """The page from its top, or the card with that heading."""
    found = f"[...document.querySelectorAll('h2')].find(h => h.textContent.startsWith('{heading}'))"
    browser.size(1200, height)
    if heading and not browser.evaluate(f"Boolean({found}?.closest('section'))"):
        print(f"{name} stays as it is: the page has no card {heading!r}")
        return
    if heading:
        height = browser.evaluate(f"{found}.closest('section').getBoundingClientRect().height + 16")
        browser.size(1200, int(height))
        browser.evaluate(f"window.scrollBy(0, {found}.closest('section').getBoundingClientRect().top - 8)")
    time.sleep(0.5)
    browser.screenshot(folder / name, width=1200, height=int(height))
    (PICTURES / name).write_bytes(with_palette((folder / name).read_bytes()))


def pages(folder: pathlib.Path) -> None:
    if not find_browser():
        return
    output("report", str(folder / "demo.gpusense"), "--trace-all", "--html", "-o", str(folder / "page.html"))
    browser = Browser(folder / "profile", "--hide-scrollbars")
    try:
        browser.open((folder / "page.html").as_uri())
        browser.wait_for("Boolean(document.querySelector('canvas'))")
        browser.evaluate("document.getElementById('phases').style.position = 'static'")  # else it lies over each card
        photographed(browser, folder, "page.png")
        photographed(browser, folder, "timeline.png", "Timeline")
        photographed(browser, folder, "operations.png", "Heaviest operations")
    finally:
        browser.close()


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        texts(folder)
        pages(folder)
    sizes = {path.name: path.stat().st_size for path in sorted(PICTURES.iterdir())}
    for picture, size in sizes.items():
        print(f"{size / 1000:6.0f} kB  {picture}")
    if max(sizes.values()) > 150_000 or sum(sizes.values()) > 600_000:
        sys.exit("too large: 150 kB each, 600 kB in all")


if __name__ == "__main__":
    main()
