"""Lets Triton Proton, started by the program later, use the libcupti that gpusense will use."""

import os

from .._runtime.import_hook import importable


def share_cupti() -> str | None:
    """Sets Proton's variable, for this process and those it starts; the folder for :func:`unshare`, or None.

    What capture does for Proton once it runs (``backends/cupti/proton.py``) comes too late for a program that starts
    Proton first. Only before the program runs: later, another thread might be reading the environment.
    """
    if not importable("triton"):
        return None
    from .._capi.libraries import CUPTI
    from .._capi.loading import locate
    from ..backends.cupti.proton import VARIABLE, folder_of

    path = locate(CUPTI) if VARIABLE not in os.environ else None
    folder = folder_of(path) if isinstance(path, str) else None
    if folder is None:
        return None
    os.environ[VARIABLE] = folder
    return folder if folder != os.path.dirname(str(path)) else None


def unshare(folder: str) -> None:
    """Removes what :func:`share_cupti` made."""
    from ..backends.cupti.proton import remove

    remove(folder)
