"""``%load_ext PACKAGE``, then ``%%gpusense`` or ``%gpusense``: what a cell or a line did on the GPU, as text and
timeline."""

import sys
from typing import TYPE_CHECKING, Any

from .. import disable, enable, get_tracer
from ._hosts import Patches
from ._recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

_TEXT = "--text"
#: Whether recording was off before, and is to be once the extension goes.
_turned_on = False


def load_ipython_extension(shell: Any) -> None:
    """Called by ``%load_ext``. Blocks are recorded from now on, in the cells of the magic and outside."""

    def gpusense(line: str, cell: str | None = None) -> Any:
        """Runs the cell or the line and shows what it did on the GPU. ``--text`` leaves the timeline out."""
        __tracebackhide__ = True  # shown errors are the cell's
        return _run_line(shell, line) if cell is None else _run_cell(shell, line, cell)

    shell.register_magic_function(gpusense, "line_cell", "gpusense")
    global _turned_on
    _turned_on = not get_tracer().active and enable()


def unload_ipython_extension(shell: Any) -> None:
    global _turned_on
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("gpusense", None)
    if _turned_on:
        _turned_on = False
        disable()


def _run_cell(shell: Any, line: str, cell: str) -> None:
    __tracebackhide__ = True
    words = line.split()
    unknown = [word for word in words if word != _TEXT]
    if unknown or _waits_in_vain(shell, cell):
        from IPython.core.error import UsageError

        # The cell did not run, and the next must not.
        raise UsageError(
            f"%%gpusense takes {_TEXT}, not {unknown[0]}"
            if unknown
            else "%%gpusense cannot run a cell with await at its top level here, where the notebook's own event loop "
            'is running: use `with gpusense.trace("cell") as block: await …`, and `block` in the last line'
        )
    recording = Recording("cell")
    try:
        result = _run_silent(shell, cell)
    finally:
        _show(recording.close(), with_timeline=_TEXT not in words)
    result.raise_error()  # so that it is shown, and stops "run all", as the cell's error would without us


def _run_line(shell: Any, line: str) -> Any:
    """The value of the line, for the shell to show or a name to take."""
    __tracebackhide__ = True
    first, _, rest = line.partition(" ")
    statement = rest if first == _TEXT else line
    if not statement.strip():
        from IPython.core.error import UsageError

        raise UsageError(f"%gpusense [{_TEXT}] STATEMENT; %%gpusense is for a cell")
    run, code = _compiled(shell.transform_cell(statement.strip()))
    recording = Recording("line")
    try:
        return run(code, shell.user_ns)
    finally:
        _show(recording.close(), with_timeline=first != _TEXT)


def _compiled(source: str) -> "tuple[Callable[..., Any], CodeType]":
    """What runs the code, and the code: an expression has a value."""
    __tracebackhide__ = True
    try:
        return eval, compile(source, "<line>", "eval")
    except SyntaxError:
        pass  # outside of here, so that an error in it has no other before it
    return exec, compile(source, "<line>", "exec")


def _waits_in_vain(shell: Any, cell: str) -> bool:
    """Whether the cell awaits at its top level and the loop that it would be awaited in is running already."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        return False
    try:
        return bool(shell.should_run_async(cell, transformed_cell=shell.transform_cell(cell)))
    except Exception:  # noqa: BLE001 - what is wrong with the cell is shown where it is run
        return False


def _run_silent(shell: Any, cell: str) -> Any:
    """The result of the cell, whose error is not shown yet. A semicolon at its end keeps its value from being shown;
    IPython would look for one at the end of the cell around it."""
    patches = Patches()
    ends_in_semicolon = getattr(shell.displayhook, "semicolon_at_end_of_expression", None)
    try:
        quiet = ends_in_semicolon is not None and ends_in_semicolon(cell)
    except Exception:  # noqa: BLE001 - unfinished code, of which the shell itself says what is wrong
        quiet = False
    if quiet:
        patches.put(shell.displayhook, "quiet", lambda: True)
    for name in ("showtraceback", "showsyntaxerror"):
        patches.put(shell, name, _nothing)
    try:
        return shell.run_cell(cell)
    finally:
        patches.undo()


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _show(session: Any, with_timeline: bool) -> None:
    from ..report import notebook

    print("\n".join(notebook.lines(session)))  # noqa: T201 - that is for a shell
    if with_timeline and len(session.records) + len(session.aggregates) > 1:  # more than the block of the cell
        from IPython.display import HTML, display

        display(HTML(notebook.frame(session)))
