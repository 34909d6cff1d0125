"""Another Python process, for what must not be done in this one: it may crash, hang, or load what should not be."""

import os
import subprocess
import sys

from . import package

#: The child finds this package by its folder, under whatever name it is vendored, without importing the host's package.
_CODE = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
sys.exit(importlib.import_module(sys.argv[2]).main(*sys.argv[3:]))
"""


def can_run() -> bool:
    """False in a frozen program and where another program embeds Python: that one must not be started again."""
    name = os.path.basename(sys.executable or "").lower()
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def run(module: str, *arguments: str, stdin: bytes = b"", timeout_s: float) -> "subprocess.CompletedProcess[bytes]":
    """What came of ``main(*arguments)`` of a module of this package, by its ``__name__``.

    Raises ``subprocess.TimeoutExpired``, and ``OSError`` where no process can be started.
    """
    # As a top-level package, so that the child imports nothing of a host.
    name = os.path.basename(package.FOLDER) + module.removeprefix(package.NAME)
    command = [sys.executable, "-c", _CODE, os.path.dirname(package.FOLDER), name, *arguments]
    environ = {**os.environ, "GPUSENSE": "off"}
    return subprocess.run(command, input=stdin, capture_output=True, timeout=timeout_s, env=environ)
