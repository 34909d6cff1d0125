"""Which run a session is of, in a line: what was run, when and where, with which software."""

import os
import time
from typing import Any

from .._runtime.text import one_line


def line(meta: dict[str, Any]) -> str:
    """Label, command, start, host, rank and versions, as far as ``meta`` has them; else empty."""
    return " · ".join(lines(meta))


def lines(meta: dict[str, Any]) -> list[str]:
    """The same for a narrow place: which run, and with which software."""
    run, known = _dict(meta.get("run")), _dict(meta.get("frameworks"))
    begun = meta.get("program_start_ns") or meta.get("start_ns")
    rank, world = meta.get("rank"), meta.get("world_size")
    which = (
        run.get("label"),
        run.get("command"),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun / 1e9)) if isinstance(begun, int) else None,
        f"on {meta['host']}" if meta.get("host") else None,
        f"rank {rank} of {world}" if rank is not None else None,
    )
    software = (
        f"Python {meta['python']}" if meta.get("python") else None,
        *(f"{name} {version}" for name, version in known.items()),
        f"driver {meta['driver']}" if meta.get("driver") else None,
        f"CUDA {meta['cuda']}" if meta.get("cuda") else None,
    )
    joined = [" · ".join(str(part) for part in parts if part) for parts in (which, software)]
    return [text for text in joined if text]


def program(meta: dict[str, Any]) -> str:
    """What to call the program: its label, its command, or just that."""
    run = _dict(meta.get("run"))
    return one_line(str(run.get("label") or run.get("command") or "program"), 80)


def script(meta: dict[str, Any]) -> str:
    """What to call the program beside its figures: its label, or its script; "" where neither is known."""
    run = _dict(meta.get("run"))
    words = str(run.get("command") or "").split()
    found = next((word for word in words if word.endswith(".py")), " ".join(words))
    name = str(run.get("label") or os.path.basename(found))
    return one_line(name, 60) if name else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
