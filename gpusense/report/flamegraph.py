"""Flame graphs: collapsed stacks for the usual tools, and speedscope's own JSON.

A stack is the path of blocks, then the operation: ``train;step;forward;gemm 1234``. Weights are device time; collapsed
stacks count whole microseconds as those tools expect, speedscope's count nanoseconds.
"""

import os
from collections.abc import Iterator
from typing import IO

from .._records.json_codec import dumps
from .._runtime.text import printable
from ..analysis.blocks import BlockNode
from ..analysis.facts import Facts
from ..analysis.operation import DEVICE_KINDS
from ..session import Session
from .files import output
from .tracks import label

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(session: Session, target: "str | os.PathLike[str] | IO[str]") -> None:
    """Writes collapsed stacks to a path or an open text file."""
    with output(target) as file:
        file.writelines(line + "\n" for line in collapsed(session))


def write_speedscope(session: Session, target: "str | os.PathLike[str] | IO[str]") -> None:
    """Writes a speedscope profile to a path or an open text file."""
    with output(target) as file:
        file.write(speedscope(session))


def stacks(session: Session) -> Iterator[tuple[tuple[str, ...], int]]:
    """(path of blocks and the operation's name, device nanoseconds), heaviest branches first."""
    waiting: list[BlockNode] = [session.once(Facts).blocks]
    while waiting:
        node = waiting.pop()
        for (kind, name), (_, spent, _) in sorted(node.operations.items(), key=lambda item: -item[1][1]):
            if kind in DEVICE_KINDS:
                yield (*node.path, label(name)), spent
        waiting += sorted(node.children.values(), key=lambda child: child.gpu_ns)


def collapsed(session: Session) -> Iterator[str]:
    """One line a stack. Times are rounded so that the lines of one session add up to its total within 1 µs."""
    owed = 0
    for frames, spent in stacks(session):
        owed += spent
        micros = (owed + 500) // 1000
        if micros > 0:
            owed -= micros * 1000
            yield f"{_stack(frames)} {micros}"


def _stack(frames: tuple[str, ...]) -> str:
    """The frames of one line. Where the last name ends in a number of its own ("gemm 128") an underscore stands before
    it, because readers take two numbers at the end of a line for two weights."""
    stack = ";".join(map(frame, frames))
    head, blank, tail = stack.rpartition(" ")
    return f"{head}_{tail}" if blank and tail.replace(".", "", 1).isdigit() else stack


def frame(name: str) -> str:
    """A name as one frame: semicolons become colons, line breaks and control characters blanks."""
    return " ".join(printable(name.replace(";", ":"), " ").split()) or "(unnamed)"


def speedscope(session: Session) -> str:
    """The same stacks as a sampled speedscope profile."""
    numbers: dict[str, int] = {}
    samples: list[list[int]] = []
    weights: list[int] = []
    for frames, spent in stacks(session):
        if spent > 0:
            samples.append([numbers.setdefault(name or "(unnamed)", len(numbers)) for name in frames])
            weights.append(spent)
    profile = {
        "type": "sampled",
        "name": "device time",
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    return dumps(
        {
            "$schema": _SCHEMA,
            "exporter": f"gpusense {session.meta.get('version', '')}".strip(),
            "name": "gpusense",
            "activeProfileIndex": 0,
            "shared": {"frames": [{"name": name} for name in numbers]},
            "profiles": [profile],
        },
        portable=True,
    )
