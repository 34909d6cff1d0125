"""What tests need of the machine: skipped without it on a developer's machine, a failure in CI."""

import os
import pathlib
import shutil
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
FAKES = HERE / "fakes"


def require(condition: object, what: str) -> None:
    """Skips on a developer's machine, fails in CI: a test skipped everywhere is a failure."""
    if condition:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI must have {what}")
    pytest.skip(f"needs {what}")


def find_compiler() -> list[str] | None:
    """The command that compiles C here: ``$CC``, cc, gcc, clang, or the one in the ziglang wheel."""
    if os.environ.get("CC"):
        return os.environ["CC"].split()
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return [path]
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return None
    return [sys.executable, "-m", "ziglang", "cc"]
