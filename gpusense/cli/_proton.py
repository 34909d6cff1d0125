"""Lets Triton Proton, started by the program later, use the libcupti that gpusense will use."""

import os

from .._capi.libraries import CUPTI
from .._capi.loading import locate
from .._records.records import Unavailable
from ..backends.cupti.proton import VARIABLE, folder_of, installed, remove

unshare = remove


def share_cupti() -> str | None:
    """Sets Proton's variable, for this process and those it starts; the folder for :func:`unshare`, or None.

    What capture does for Proton once it runs (``backends/cupti/proton.py``) comes too late for a program that starts
    Proton first. Only before the program runs: later, another thread might be reading the environment.
    """
    if VARIABLE in os.environ or not installed():
        return None
    path = locate(CUPTI)
    folder = folder_of(path) if not isinstance(path, Unavailable) else None
    if folder is None:
        return None
    os.environ[VARIABLE] = folder
    return folder if folder != os.path.dirname(str(path)) else None
