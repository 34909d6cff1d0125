"""A process that outlives the program, and answers for it where nothing in the program's own could.

SIGKILL, a crash and ``exec`` leave nobody to speak in the process that records. It has no child of its own here, since
the program may wait for all that it has. Linux alone, where a process can wait for one that is not its child.
"""

import os
from collections.abc import Callable
from time import sleep
from typing import NoReturn


def call(answer: Callable[[], None]) -> None:
    """Has ``answer()`` called once this process has ended, in another one that keeps of it stderr alone. Nothing where
    that cannot be. Only from a process with one thread, before the program runs."""
    if not (hasattr(os, "pidfd_open") and hasattr(os, "fork")):
        return
    try:
        if len(os.listdir("/proc/self/task")) > 1:
            return
        program, pid = os.pidfd_open(os.getpid()), os.getpid()
    except OSError:
        return
    try:
        child = os.fork()
        if child == 0:
            _become(program, pid, answer)
        os.waitpid(child, 0)
    except OSError:  # no more processes are allowed
        pass
    finally:
        os.close(program)


def _become(program: int, pid: int, answer: Callable[[], None]) -> NoReturn:
    """In the child: its own child stays, as nobody's."""
    try:
        os.setsid()  # Ctrl-C and a terminal that closes are the program's
        between = os.getpid()
        if os.fork() == 0:
            program = _alone_with(program)
            while os.getppid() == between:
                sleep(0.001)
            if os.getppid() != pid:  # as where the program is the first of its container: it would wait for this one
                _wait_for(program)
                answer()
    except BaseException:  # noqa: BLE001 - nobody is there to be told
        pass
    finally:
        os._exit(0)


def _alone_with(descriptor: int) -> int:
    """Closes every descriptor but ``descriptor`` and stderr: who reads what the program writes waits for its end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    kept = os.dup2(descriptor, 3) if descriptor != 3 else 3
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    return kept


def _wait_for(process: int) -> None:
    import select

    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll()
