"""``GPUSENSE=on`` from the first launch on: CUDA calls as it starts, in a process that has imported gpusense.

The mechanism is that of a run (``run.py``). The file that CUDA loads lies in the user's cache, since there is no end at
which it could be removed. Children inherit the variable that names it; it does nothing in one that has not imported
gpusense, or is no Python.
"""

import os

from .._runtime import package

_LATER_S = 0.05
#: Of a script that CUDA has Python run, after ``try``: nobody who could end the program hears of Ctrl-C there, so it
#: comes once more when the script has returned.
EXCEPT_INTERRUPT = f"""\
except KeyboardInterrupt:
    import _thread, time
    _thread.start_new_thread(lambda: (time.sleep({_LATER_S}), _thread.interrupt_main()), ())"""
#: For each copy of gpusense that the process has imported.
_SCRIPT = f"""
import sys
from importlib import import_module
try:
    for name in list(sys.modules):
        if name.endswith({__name__.removeprefix(package.NAME)!r}):
            import_module(".select", name.rpartition(".")[0]).control.cuda_starts()
{EXCEPT_INTERRUPT}
except Exception:
    pass
"""


def announce() -> None:
    """As gpusense is imported under ``GPUSENSE=on``: capture begins as CUDA does. Where that cannot be, and where the
    environment names a run or another tool, it begins as it does otherwise, by looking."""
    try:
        from zlib import crc32

        from .._runtime import cache
        from ..backends.cupti import injection

        if os.environ.get(injection.VARIABLE):
            return
        script = f"exec({_SCRIPT!r}, {{}})"
        folder = cache.private(f"start-{crc32(script.encode()):08x}")
        if folder is not None:
            injection.install(folder, script, noting=False)
    except Exception:  # noqa: BLE001 - never into an import of the program
        pass
