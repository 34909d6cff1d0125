"""``%load_ext PACKAGE``, then ``%%gpusense``: what a cell did on the GPU, as text and timeline."""

import sys
from typing import Any

from ._hosts import Patches
from ._recording import Recording

_PAGE_HEIGHT = 560


def load_ipython_extension(shell: Any) -> None:
    """Called by ``%load_ext``; nothing is recorded outside ``%%gpusense`` cells."""

    def gpusense(line: str, cell: str) -> None:
        """Runs the cell and shows what it did on the GPU. ``%%gpusense --text`` leaves the timeline out."""
        __tracebackhide__ = True  # shown errors are the cell's
        _run(shell, line, cell)

    shell.register_magic_function(gpusense, "cell", "gpusense")


def unload_ipython_extension(shell: Any) -> None:
    shell.magics_manager.magics["cell"].pop("gpusense", None)


def _run(shell: Any, line: str, cell: str) -> None:
    __tracebackhide__ = True
    words = line.split()
    unknown = [word for word in words if word != "--text"]
    if unknown or _waits_in_vain(shell, cell):
        from IPython.core.error import UsageError

        # The cell did not run, and the next must not.
        raise UsageError(
            f"%%gpusense takes --text, not {unknown[0]}"
            if unknown
            else "%%gpusense cannot run a cell with await at its top level here, where the notebook's own event loop "
            'is running: use `with gpusense.trace("cell") as block: await …`, and print(block.summary()) afterwards'
        )
    recording = Recording("cell")
    try:
        result = _run_silent(shell, cell)
    finally:
        session = recording.close()
    from ..report import text

    lines = text.summary(session)
    print("\n".join(line for line in lines if not line.startswith("next: ")))  # noqa: T201 - that is for a shell
    if "--text" not in words:
        _show(session)
    result.raise_error()  # so that it is shown, and stops "run all", as the cell's error would without us


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
    if ends_in_semicolon is not None and ends_in_semicolon(cell):
        patches.put(shell.displayhook, "quiet", lambda: True)
    for name in ("showtraceback", "showsyntaxerror"):
        patches.put(shell, name, _nothing)
    try:
        return shell.run_cell(cell)
    finally:
        patches.undo()


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _show(session: Any) -> None:
    import io
    from html import escape

    from IPython.display import HTML, display

    from ..report.html import page as html

    page = io.StringIO()
    html.write(session, page)
    # In a frame of its own, the page's scripts reach neither the notebook nor the network.
    frame = (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(page.getvalue())}" '
        f'style="width:100%;height:{_PAGE_HEIGHT}px;border:0"></iframe>'
    )
    display(HTML(f"<div>{frame}</div>"))
