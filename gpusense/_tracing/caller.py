"""What a block without a name is called: after the function and the line of the program that opens it."""

import sys

from .._runtime import package


def called_from() -> str:
    """ "train (train.py:31)"; "train.py:31" outside any function, "cell:2" in a notebook."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__")):
        frame = frame.f_back
    place, function = f"{_file(frame.f_code.co_filename)}:{frame.f_lineno}", frame.f_code.co_name
    return place if function == "<module>" else f"{function} ({place})"


def _is_ours(module: object) -> bool:
    """Whether the program is further out: also where an ``ExitStack`` enters the block."""
    name = str(module)
    return name == package.NAME or name.startswith(f"{package.NAME}.") or name == "contextlib"


def _file(path: str) -> str:
    folder, _, name = path.replace("\\", "/").rpartition("/")
    return "cell" if "/ipykernel_" in folder or name.startswith("<ipython-input-") else name
