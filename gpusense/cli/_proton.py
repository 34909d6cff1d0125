"""Lets Triton Proton, started by the program later, use the libcupti that gpusense will use."""

import importlib.util
import os

from .._capi.libraries import CUPTI
from .._capi.loading import locate
from .._records import Unavailable

#: Where Proton looks for ``libcupti.so`` in place of the copy that it brings.
VARIABLE = "TRITON_CUPTI_LIB_PATH"


def share_cupti() -> str | None:
    """Sets Proton's variable, for this process and those it starts; the folder for :func:`unshare`, or None.

    CUPTI refuses a subscriber (error 39) that comes through a second copy of the library, also where nobody subscribes.
    Only before the program runs: later, another thread might be reading the environment.
    """
    if VARIABLE in os.environ or not _installed():
        return None
    path = locate(CUPTI)
    if isinstance(path, Unavailable) or not os.path.isabs(path):
        return None
    if os.path.basename(path) == "libcupti.so":
        os.environ[VARIABLE] = os.path.dirname(path)
        return None
    import tempfile

    try:
        folder = tempfile.mkdtemp(prefix="gpusense-")
    except OSError:
        return None
    try:
        os.symlink(path, os.path.join(folder, "libcupti.so"))
    except OSError:
        unshare(folder)
        return None
    os.environ[VARIABLE] = folder
    return folder


def unshare(folder: str) -> None:
    """Removes what :func:`share_cupti` made."""
    try:
        os.unlink(os.path.join(folder, "libcupti.so"))
        os.rmdir(folder)
    except OSError:
        pass


def _installed() -> bool:
    try:
        return importlib.util.find_spec("triton") is not None
    except (ImportError, ValueError):
        return False
