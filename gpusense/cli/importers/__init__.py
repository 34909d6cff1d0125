"""Traces of other tools as sessions: :mod:`.kineto` (torch.profiler, Proton), :mod:`.nsight`, :mod:`.strace`.

In: a file that another tool wrote. Out: a session as a run of gpusense leaves it, whose ``notes`` say what the file had
that could not be carried, and what it lacks. Only the verb ``import`` imports it (and ``run --syscalls`` the parser of
strace's lines).
"""
