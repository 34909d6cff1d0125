"""Sessions as the command line names them: files, folders of runs, and what belongs to a file."""

import os
from collections.abc import Callable
from itertools import repeat
from typing import Any

from .._runtime.errors import GpuSenseError
from .._runtime.process import is_written
from .._runtime.text import count_text
from ..session._unrecorded import ENDED_BY
from . import _outputs, _runs

#: In ``meta``: files of the processes that a program started, beside the session of that which began the run.
CHILDREN = "children"
#: What ended a program of which nobody knows more.
SOMEHOW = "a signal, a crash or exec"


#: Of a job in which more processes used a device those are read whole that tell most; of the others what comparing them
#: needs.
MANY = 8
_SHOWN = 4
#: Forms that another program reads, which has the tools to choose among many ranks.
OF_ALL_WORK = ("perfetto", "chrome", "speedscope", "flamegraph")


def loaded(paths: list[str], whole: bool = True, **choice: Any) -> Any:
    """One session of everything in ``paths``, files or folders of runs. ``choice``: as for ``load``. Of many files not
    ``whole``: the work of a few ranks, and the collectives of all."""
    files = _files(paths)
    if whole:
        return joined(_each(_load, files, choice), **choice)
    if len(files) <= MANY:
        sessions = _each(_load, files, choice)
        started = [path for session in sessions for path in _companions(session)]
        if len({*map(_whole_path, (*files, *started))}) <= MANY:
            return joined(sessions, **choice)
        runs = [session.meta.get("run") for session in sessions]
        return _read_briefly(list(dict.fromkeys(map(_whole_path, (*files, *started)))), runs, choice)
    return _read_briefly(files, [], choice)


def _read_briefly(files: list[str], runs: list[Any], choice: dict[str, Any]) -> Any:
    """One session of many files. ``runs``: which they are of, where names alone were known."""
    read = list(zip(files, _each(_brief, files, choice), strict=True))
    missing = [f"nothing is known of a rank: {one}" for _, one in read if isinstance(one, str)]
    known = [(path, one) for path, one in read if not isinstance(one, str)]
    known = [(path, one) for path, one in known if not runs or one.meta.get("run") in runs]
    if not known:
        raise GpuSenseError(missing[0])
    known.sort(key=lambda pair: _place(pair[1]))
    session = _job(known, lambda paths: _each(_load, paths, choice))
    if missing:
        session.meta["missing"] = missing
    return session


def _job(known: list[tuple[str, Any]], load: Callable[[list[str]], list[Any]]) -> Any:
    """One session of many, with their paths, in order. Of those that are brief ``load`` gives some whole: all of few,
    else those that tell most."""
    from ..analysis.figures import is_brief
    from ..analysis.ranks import telling
    from ..session import merge

    told = [(path, one) for path, one in known if _tells(one) or is_brief(one)]
    launchers = [one for _, one in known if not _tells(one) and not is_brief(one)] if told else []
    known = told or known
    sessions = [session for _, session in known]
    places = [place for place, session in enumerate(sessions) if is_brief(session)]
    if len(places) > MANY:
        chosen = telling(_numbered([sessions[place] for place in places]), _SHOWN)
        places = [places[at] for at in chosen]
    for place, session in zip(places, load([known[place][0] for place in places]), strict=True):
        session.meta["rank"] = sessions[place].meta.get("rank")
        sessions[place] = session
    return merge(_with_samples(sessions, launchers))


def _tells(session: Any) -> bool:
    """Whether it is more than what launched the others: a rank that did nothing tells by that."""
    return bool(session.records or session.aggregates) or session.meta.get("rank") is not None


def _numbered(sessions: list[Any]) -> list[Any]:
    """The sessions, without the numbers of ranks where two have the same, as of two runs."""
    numbers = [session.meta.get("rank") for session in sessions]
    if None in numbers or len(set(numbers)) < len(numbers):
        for session in sessions:
            session.meta["rank"] = None
    return sessions


def _load(path: str, choice: dict[str, Any]) -> Any:
    from ..session import load

    return load(path, **choice)


def _brief(path: str, choice: dict[str, Any]) -> Any:
    """What comparing a process with others needs, of one that used no device all; a sentence where the file cannot be
    read."""
    try:
        return _shortened(_load(path, choice))
    except GpuSenseError as error:
        return str(error)


def _shortened(session: Any) -> Any:
    from ..analysis.figures import brief

    return brief(session) if len(session.work) or session.work.summed else session


def _each(read: Callable[[str, dict[str, Any]], Any], paths: list[str], choice: dict[str, Any]) -> list[Any]:
    """What ``read`` gives of each path, by as many processes as there are cores."""
    workers = min(len(paths) // 2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if workers < 2:
        return [read(path, choice) for path in paths]
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(workers, get_context("fork")) as pool:
        return list(pool.map(read, paths, repeat(choice)))


def last() -> str:
    """Folder of the last run that was kept."""
    found = _runs.last()
    if found is None:
        raise GpuSenseError("name a session file: no run is kept yet; gpusense run keeps the last ten")
    return found


def _files(paths: list[str]) -> list[str]:
    found = []
    for path in paths:
        files = _runs.sessions(path) if os.path.isdir(path) else [path]
        if not files:
            raise GpuSenseError(f"{path}: there is no session file (*.gpusense) in this folder")
        found += files
    return found


def joined(sessions: list[Any], limit_s: float = float("inf"), whole: bool = True, **choice: Any) -> Any:
    """``sessions`` with those of the processes that their programs started, as one, ranks in their order; ``whole`` as
    for :func:`loaded`. What is missing stands in ``meta["missing"]``, a sentence each. No more than one session is read
    past ``limit_s``, and those that tell most of many."""
    from time import monotonic

    from ..session import merge

    until = monotonic() + limit_s
    known = {_whole_path(path) for session in sessions if (path := session.meta.get("path"))}
    found: list[Any] = []
    missing: list[str] = []
    paths = [(path, session) for session in sessions for path in _companions(session)]
    briefly = not whole and len(paths) + len(sessions) > MANY
    for read, (path, session) in enumerate(paths):
        if _whole_path(path) not in known:
            if monotonic() > until:
                left = len(paths) - read
                are = count_text(left, "process is", "processes are")
                missing.append(f"{are} not in this answer, to save time; gpusense report reads all")
                break
            known.add(_whole_path(path))
            _add(found, missing, path, session, briefly, choice)
    found.sort(key=_place)
    if briefly:
        every = [(session.meta.get("path") or "", session) for session in (*sessions, *found)]
        session = _job(every, lambda paths: [_load(path, choice) for path in paths])
    else:
        several = _without_launcher([*sessions, *found])
        session = merge(several) if len(several) > 1 else several[0]
    if missing:
        session.meta["missing"] = missing
    return session


_whole_path = os.path.realpath


def _place(session: Any) -> tuple[Any, ...]:
    rank = session.meta.get("rank")
    return rank is None, rank or 0, session.meta.get("start_ns") or 0


def _add(found: list[Any], missing: list[str], path: str, beside: Any, briefly: bool, choice: dict[str, Any]) -> None:
    from ..session import load

    try:
        session = load(path, **choice)
    except GpuSenseError as error:
        missing.append(f"nothing is known of a process that the program started: {error}")
        return
    run = session.meta.get("run")
    if run is None and session.meta.get("complete") is False:
        missing.append(f"nothing is known of a process that the program started: {path} ends at its beginning")
    elif session.meta.get("complete") is False and beside.meta.get("complete") and not is_written(path):
        session.meta.setdefault(ENDED_BY, SOMEHOW)  # before the program did that started it
    if run == beside.meta.get("run"):  # another run may have used the name since
        found.append(_shortened(session) if briefly else session)


def _companions(session: Any) -> list[str]:
    """Files of the processes that the session's program started, wherever they were moved together. A program that was
    killed, became another or had a full disk has left no list: then it may be any file beside it."""
    path, names = session.meta.get("path"), session.meta.get(CHILDREN)
    if not path or not session.meta.get("run"):
        return []
    folder = os.path.dirname(path)
    cut = session.meta.get("complete") is False or (session.meta.get("file") or {}).get("failure")
    if names is None and cut:
        before, _, after = _outputs.beside(os.path.basename(path), "\0").partition("\0")
        names = [name for name in os.listdir(folder or ".") if name.startswith(before) and name.endswith(after)]
    return [os.path.join(folder, os.path.basename(str(name))) for name in names or () if isinstance(names, list)]


def _without_launcher(sessions: list[Any]) -> list[Any]:
    """Without the one that began the run where all that was recorded is of processes it started; what run it was stays
    known, and its samples of the devices stay."""
    empty = [one for one in sessions if not one.records and not one.aggregates and one.meta.get("run")]
    launchers = [
        one for one in empty if one is sessions[0] or (one.meta.get(CHILDREN) and one.meta.get("rank") is None)
    ]
    ranks = [one for one in sessions if not any(one is other for other in launchers)]
    return _with_samples(ranks, launchers) if ranks else sessions


def _with_samples(sessions: list[Any], launchers: list[Any]) -> list[Any]:
    """The sessions, the first of which has what ``launchers`` sampled of the devices, too."""
    for one in launchers:
        sessions[0].metrics.extend(one.metrics)
    return sessions
