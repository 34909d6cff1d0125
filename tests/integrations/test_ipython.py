"""``%%gpusense`` in a real IPython shell."""

import pytest
from support.machine import require

import gpusense


def _ipython():
    try:
        import IPython
    except ImportError:
        return None
    return IPython


CODE = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpusense.integrations.ipython")
"""


@pytest.fixture
def run(run_python):
    require(_ipython(), "ipython (dependency group integrations)")

    def start(code):
        done = run_python(CODE + code, timeout=90, IPYTHONDIR=".", HOME=".")
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return start


def test_a_cell_shows_text_and_timeline(run):
    out = run(
        '''
cell = """import gpusense
gpusense.record_kernel("my_kernel", duration_ns=250_000)
x = 6 * 7
x"""
with capture_output() as got:
    shell.run_cell("%%gpusense\\\\n" + cell)
    shell.run_cell("%%gpusense --text\\\\ngpusense.record_kernel('other', duration_ns=250_000)")
assert shell.user_ns["x"] == 42
html = [output.data["text/html"] for output in got.outputs if "text/html" in output.data]
assert len(html) == 1, got.outputs
assert 'srcdoc="' in html[0] and 'sandbox="allow-scripts"' in html[0]
assert html[0].count('"') == 8 - 2, "the page must not end its own attribute"

assert "my_kernel" in got.stdout and "42" in got.stdout
assert "other" in got.stdout.partition("my_kernel")[2]
assert got.stdout.count("verdict: ") == 2
assert "class=&quot;embedded&quot;" in html[0], "the text has told the verdict, the frame begins with the timeline"
import gpusense
with gpusense.trace("beside") as block:  # as a cell with await does it
    gpusense.record_kernel("awaited", duration_ns=250_000)
assert "awaited" in str(block.summary()), block.summary()
shell.run_line_magic("unload_ext", "gpusense.integrations.ipython")
assert not gpusense.get_tracer().active
print("shown")
'''.replace("\\\\n", "\\n")
    )
    assert out.endswith("shown\n")


def test_errors_and_wrong_words(run):
    out = run("""
import re
def run(cell):
    with capture_output() as got:
        result = shell.run_cell(cell)
    return result, re.sub(r"\\x1b\\[[0-9;]*m", "", got.stdout + got.stderr)
result, text = run("%%gpusense --text\\ny = 2\\n1 / 0")
assert isinstance(result.error_in_exec, ZeroDivisionError)  # what stops "run all"
assert text.count("ZeroDivisionError: division by zero") == 1
assert text.index("no GPU work: ") < text.index("ZeroDivisionError")
assert "next:" not in text and shell.user_ns.pop("y") == 2
result, text = run("%%gpusense --text\\ny = = 2")
assert not result.success and text.count("SyntaxError") == 1
assert "showtraceback" not in vars(shell)
result, text = run("1 / 0")
assert text.count("ZeroDivisionError: division by zero") == 1
with capture_output() as got:
    refused = shell.run_cell("%%gpusense --wrong\\ny = 1")
assert "takes --text, not --wrong" in got.stderr
assert not refused.success  # or "run all" would go on without what the cell should have done
assert "y" not in shell.user_ns
shell.run_line_magic("unload_ext", "gpusense.integrations.ipython")
assert "gpusense" not in shell.magics_manager.magics["cell"]
import gpusense
with gpusense.trace("x"):
    pass
assert not gpusense.get_tracer().active
print("done")
""")
    assert out.endswith("done\n")


def test_off_is_said(run_python):
    require(_ipython(), "ipython (dependency group integrations)")
    done = run_python(
        CODE + 'shell.run_cell("%%gpusense --text\\nz = 3"); print(shell.user_ns["z"])',
        timeout=90,
        IPYTHONDIR=".",
        HOME=".",
        GPUSENSE="off",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("3\n")


def test_a_part_of_a_session_is_what_was_inside():
    from gpusense._records.records import Aggregate, BlockRecord, Counters, GpuKernel
    from gpusense.integrations._recording import part
    from gpusense.session import Session

    class Block:
        path, start_ns, end_ns = ("outer", "cell"), 100, 200

    def kernel(name, start, path):
        return GpuKernel(name, start, start + 10, device=0, path=path)

    records = [
        kernel("before", 50, ("outer",)),
        kernel("inside", 150, ("outer", "cell")),
        kernel("deeper", 160, ("outer", "cell", "x")),
        kernel("beside", 170, ("other",)),
        kernel("no block", 180, ()),
        kernel("no block, later", 280, ()),
        kernel("an earlier cell", 20, ("outer", "cell")),
        BlockRecord("cell", 1, None, ("outer", "cell"), 100, 200, 1),
    ]
    rows = [
        Aggregate(("outer", "cell"), "kernel", "k", "cuda", 0, 7, 3, 9, 3, 3, 27),
        Aggregate(("outer",), "kernel", "k", "cuda", 0, 7, 3, 9, 3, 3, 27),
    ]
    found = part(Session(records=records, aggregates=rows, meta={"pid": 1}), Block, Counters())
    assert [record.name for record in found.records] == ["inside", "deeper", "no block", "cell"]
    assert found.aggregates == rows[:1]
    assert (found.counters.seen, found.counters.kept, found.counters.aggregated) == (7, 4, 3)
    assert found.duration_ns == 100
    assert found.busy[0].busy_ns == 30
    assert gpusense.Session is Session


def test_a_cell_that_awaits_while_the_loop_runs_says_what_to_do(run):
    out = run(
        """
import asyncio
from IPython.core.error import UsageError

CELL = "import asyncio\\nran = True\\nawait asyncio.sleep(0)"
shell.run_cell_magic("gpusense", "--text", CELL)  # no loop runs: the shell has one
assert shell.user_ns.pop("ran")

async def notebook():
    try:
        shell.run_cell_magic("gpusense", "--text", CELL)
    except UsageError as error:
        print("told:", error)
    assert "ran" not in shell.user_ns
    shell.run_cell_magic("gpusense", "--text", "async def f():\\n    await g\\nran = True")  # not at the top level
    assert shell.user_ns["ran"]

asyncio.run(notebook())
"""
    )
    assert 'use `with gpusense.trace("cell") as block: await …`' in out


def test_a_semicolon_keeps_a_value_silent_as_without_us(run):
    out = run(
        """
value = "'nee' + 'dle'"
cells = [f"{value};", value, f"{value}  # no;", "x = 1\\n'needle;'", f"x = 1\\n{value};  # then", f"{value} +"]
def shown(head):
    found = []
    for cell in cells:
        with capture_output() as got:
            shell.run_cell(head + cell, store_history=True)
        found.append("'needle" in got.stdout)
    return found
assert shown("") == shown("%%gpusense --text\\n") == [False, True, True, True, False, False], shown("")
print("compared")
""".replace("\\\\n", "\\n")
    )
    assert out.endswith("compared\n")


def test_the_packages_name_is_enough(run):
    out = run(
        """
shell.run_line_magic("unload_ext", "gpusense.integrations.ipython")
assert "gpusense" not in shell.magics_manager.magics["cell"]
shell.run_line_magic("load_ext", "gpusense")
assert "gpusense" in shell.magics_manager.magics["cell"]
shell.run_line_magic("unload_ext", "gpusense")
assert "gpusense" not in shell.magics_manager.magics["cell"]
print("loaded")
"""
    )
    assert out == "loaded\n"


def test_a_line_gives_its_value_and_shows_what_it_did(run):
    out = run(
        """
from IPython.core.error import UsageError

def said(line):
    with capture_output() as got:
        shell.run_cell(line)
    return got.stdout, [output.data["text/html"] for output in got.outputs if "text/html" in output.data]

shell.run_cell("import gpusense\\ndef work(n):\\n    gpusense.record_kernel('k', duration_ns=250_000)\\n    return n")
text, pages = said("%gpusense work(41)")
assert text.count("verdict: ") == 1 and len(pages) == 1, text
assert text.rstrip().endswith("41"), text
text, pages = said("found = %gpusense --text work(42)")
assert shell.user_ns["found"] == 42 and not pages and "verdict: " in text
text, pages = said("%gpusense made = work(43)")
assert shell.user_ns["made"] == 43
text, pages = said("%gpusense 1")
assert not pages, "nothing to draw"
wrongs = dict.fromkeys(("x = = 1", "def (", "x = (1,"), SyntaxError) | dict.fromkeys(("", "--text"), UsageError)
for wrong, error in {"1 / 0": ZeroDivisionError, **wrongs}.items():
    with capture_output():
        result = shell.run_cell("%gpusense " + wrong)
    assert not result.success and isinstance(result.error_in_exec or UsageError(), error), (wrong, result)
print("lines")
""".replace("\\\\n", "\\n")
    )
    assert out.endswith("lines\n")
