"""A process that outlives the program, and answers for it where nothing in the program's own could.

SIGKILL, a crash and ``exec`` leave nobody to speak in the process that records. It has no child of its own here, since
the program may wait for all that it has. Linux alone, where a process can wait for one that is not its child.
"""

import os
import sys
from collections.abc import Callable
from time import sleep
from typing import NoReturn

#: PIDFD_GET_INFO and PIDFD_INFO_EXIT of linux/pidfd.h, since Linux 6.15; the first mask and the last number of its
#: structure, which is there once the parent has asked; and how often that is looked for.
_GET_INFO, _EXIT, _SIZE, _CODE = 0xC040FF0B, 8, 64, 60
_TRIES, _TRY_S = 10, 0.01


def call(answer: Callable[[int | None], None]) -> None:
    """Has ``answer(status)`` called once this process has ended, in another one that keeps of it stderr alone; the
    status is that of ``os.wait``, None where nobody but the parent is told. Nothing where that cannot be. Only from a
    process with one thread, before the program runs."""
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


def _become(program: int, pid: int, answer: Callable[[int | None], None]) -> NoReturn:
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
                answer(_status(program, pid))
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


def _status(process: int, pid: int) -> int | None:
    """How a process that has ended did so: while its parent has not asked yet its own file tells, later the kernel."""
    import fcntl

    for _ in range(_TRIES):
        info = bytearray(_SIZE)
        info[0] = _EXIT
        try:
            fcntl.ioctl(process, _GET_INFO, info)
        except OSError:  # an older kernel
            info[0] = 0
        if info[0] & _EXIT:
            return int.from_bytes(info[_CODE:_SIZE], sys.byteorder)
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                state, *facts = file.read().rpartition(")")[2].split()
            if state == "Z":
                return int(facts[-1])
        except (OSError, ValueError):
            pass
        sleep(_TRY_S)
    return None
