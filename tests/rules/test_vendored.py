"""The folder inside other packages: without dist-info, under other names, twice in one process."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

from gpusense import cli
from gpusense.cli import vendor

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"

#: Tests of behaviour that run again inside a copy, with its name in place of ours.
BEHAVIOUR = (
    *("tracing/test_tracer.py", "tracing/test_tracer_sinks.py", "tracing/test_tracer_settings.py"),
    *("tracing/test_block.py", "aggregation/test_pipeline.py", "attribution/test_attributor.py"),
)


def package(folder: pathlib.Path, text: str = "") -> pathlib.Path:
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(text)
    return folder


def python(folder: pathlib.Path, *arguments: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
    """A child that finds packages in ``folder`` alone, warnings being errors."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSENSE", "PYTHONPATH"))}
    environ["PYTHONPATH"] = str(folder)
    environ["HYPOTHESIS_PROFILE"] = "few"  # all examples run where the tests are themselves
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environ, cwd=folder)


def renamed(text: str, name: str) -> str:
    """A test's source with ``name`` (dotted) where it imports gpusense."""
    text = re.sub(r"\bfrom gpusense\b", f"from {name}", text)
    text = re.sub(r"\bimport gpusense(?= as )", f"import {name}", text)
    return re.sub(r"\bimport gpusense(?=$|;| *\n)", f"import {name} as gpusense", text, flags=re.MULTILINE)


_NO_OTHER_COPY = """
import sys
import pytest

@pytest.fixture(scope="session", autouse=True)
def no_other_copy():
    yield
    strangers = [name for name in sys.modules if name.partition(".")[0] == "gpusense"]
    assert not strangers, strangers
"""


def test_behaviour_tests_pass_in_a_copy_without_dist_info(tmp_path):
    vendor.copy(str(package(tmp_path / "host") / "_vendor_gpusense"))
    helpers = [f"support/{path.name}" for path in (TESTS / "support").glob("*.py")]
    for name in ("conftest.py", *helpers, *BEHAVIOUR):
        target = tmp_path / "copied" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(renamed((TESTS / name).read_text("utf-8"), "host._vendor_gpusense"), "utf-8")
    with (tmp_path / "copied" / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(_NO_OTHER_COPY)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\npythonpath = copied\n")
    options = ["-q", "-x", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'its own'}"]
    done = python(tmp_path, "-m", "pytest", *options, "copied", timeout=240)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\b[1-9]\d+ passed", done.stdout), done.stdout


_TWO_HOSTS = """
import sys
finders, hooks = list(sys.meta_path), list(sys.path_hooks)
import {first}, {second}

a, b = {first}.work(3), {second}.work(5)
assert [record.name for record in a.blocks] == ["{first}"] * 3, a.blocks
assert [record.name for record in b.blocks] == ["{second}"] * 5, b.blocks
from alpha import _gpusense as one
from beta.extern import sense as two

assert (one.__version__, two.__version__) == ("{version}", "9.9.9")
assert one.get_tracer() is not two.get_tracer()
assert one.GpuKernel is not two.GpuKernel
assert sys.meta_path == finders and sys.path_hooks == hooks
ours = [name for name in sys.modules if "sense" in name]
assert ours and all(name.startswith(("alpha._gpusense", "beta.extern.sense")) for name in ours), ours

# A sink of one copy takes what the other hands on; a setting of one is none of the other.
seen = []
two.get_tracer().add_sink(seen.extend)
two.configure(threshold_us=1)
two.record_kernel("k", duration_ns=5_000)
two.get_tracer().flush()
assert [record.name for record in seen] == ["k"]
assert one.get_tracer().config.threshold_us == 100.0

# So is switching one off.
two.disable()
with two.trace("unseen"):
    pass
with one.trace("seen"):
    pass
assert [record.name for record in one.get_tracer().session().blocks][-1] == "seen"
assert "unseen" not in [record.name for record in two.get_tracer().session().blocks]
print("both traced")
"""

_HOST = """
from {copy} import enable, get_tracer, trace

def work(times):
    assert enable()
    for _ in range(times):
        with trace("{name}"):
            pass
    return get_tracer().session()
"""


@pytest.fixture
def two_hosts(tmp_path):
    """Packages ``alpha`` and ``beta`` that vendor different versions, the second core-only."""
    vendor.copy(str(package(tmp_path / "alpha", _HOST.format(copy="._gpusense", name="alpha")) / "_gpusense"))
    package(tmp_path / "beta", _HOST.format(copy=".extern.sense", name="beta"))
    sense = package(tmp_path / "beta" / "extern") / "sense"
    vendor.copy(str(sense), core=True)
    root = sense / "__init__.py"
    root.write_text(re.sub(r'__version__ = "[^"]+"', '__version__ = "9.9.9"', root.read_text("utf-8")), "utf-8")
    return tmp_path


@pytest.mark.parametrize("order", [("alpha", "beta"), ("beta", "alpha")])
def test_two_versions_in_one_process_share_nothing_and_both_trace(two_hosts, order):
    from gpusense import __version__

    code = _TWO_HOSTS.format(first=order[0], second=order[1], version=__version__)
    done = python(two_hosts, "-c", code)
    assert (done.returncode, done.stdout) == (0, "both traced\n"), done.stderr


_FORK = """
import os, sys
import alpha, beta
alpha.work(1), beta.work(1)
pid = os.fork()
if not pid:
    from alpha import _gpusense
    with _gpusense.trace("in the child"):
        pass
    code = 0 if type(_gpusense.get_tracer()).__name__ == "NoopTracer" else 3
    os._exit(code)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert len(alpha.work(1).blocks) == 2 and len(beta.work(1).blocks) == 2
print("forked")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fork_and_exit_hooks_of_two_copies_do_not_meet(two_hosts):
    done = python(two_hosts, "-W", "ignore::DeprecationWarning", "-c", _FORK)  # 3.12 warns of forking with threads
    assert (done.returncode, done.stdout) == (0, "forked\n"), done.stderr


# --- core-only --------------------------------------------------------------------------------------------------------

_CORE = """
import sys
from host import sense
assert sense.enable()
with sense.trace("step") as block:
    sense.record_kernel("k", duration_ns=2_000_000_000)
    sense.record_transfer("up", "cpu_to_gpu", bytes=1000, duration_ns=1_000)
tracer = sense.get_tracer()
assert block.summary().kernel_count == 1
assert tracer.summary().operation("step").count == 1
assert [row.name for row in tracer.bottlenecks()][0] == "k"
tracer.print_summary(sys.stderr)
assert '"gpusense.report/1"' in tracer.export_json()
session = tracer.session()
assert session.verdict and session.operations() and session.block_table() and session.timeline()
assert session._repr_html_() is None
try:
    session.to_html()
except ModuleNotFoundError as error:
    assert str(error) == "this copy of the package comes without report/html.page"
assert isinstance(sense.devices(), tuple)
monitor = sense.monitor.start_background(lambda metrics: None, interval=0.05)
monitor.stop()
sense.monitor.snapshot()
try:
    sense.exporters
except ModuleNotFoundError:
    print("core")
"""


def test_the_core_traces_monitors_and_reports_json(tmp_path):
    vendor.copy(str(package(tmp_path / "host") / "sense"), core=True)
    done = python(tmp_path, "-c", _CORE)
    assert (done.returncode, done.stdout) == (0, "core\n"), done.stderr


def test_the_core_imports_nothing_that_was_left_out():
    """Also inside functions; the root and the table of backends answer for what is not there."""
    core, whole = set(vendor.names(core=True)), set(vendor.names())
    for name in (path for path in core if path.endswith(".py") and path != "__init__.py"):
        folder = name.split("/")[:-1]
        for node in ast.walk(ast.parse((ROOT / "gpusense" / name).read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = folder[: len(folder) - node.level + 1] + (node.module.split(".") if node.module else [])
            for target in (base, *([*base, alias.name] for alias in node.names)):
                wanted = {"/".join(target) + ".py", "/".join([*target, "__init__.py"])} & whole
                assert wanted <= core, f"{name}:{node.lineno} imports {wanted - core}"


def test_everything_named_as_not_core_is_there():
    whole = vendor.names()
    for prefix in vendor.NOT_CORE:
        assert any(path.startswith(prefix) for path in whole), prefix


# --- the verb ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path):
    target = tmp_path / "sense"
    assert cli.main(["vendor", str(target)]) == 0
    return target


def test_a_fresh_copy_checks_clean_and_has_the_licence(copied, capsys):
    assert cli.main(["vendor", "--check", str(copied)]) == 0
    assert "is as it was copied\n" in capsys.readouterr().err
    assert "MIT License" in (copied / "LICENSE").read_text("utf-8")
    assert not list(copied.rglob("*.pyc"))
    assert not (copied / "cli" / "_demo.gpusense").exists()


def test_edited_missing_and_added_files_are_named(copied, capsys):
    (copied / "_runtime/log.py").write_text("x = 1\n")
    (copied / "_decode/names.py").unlink()
    (copied / "mine.py").write_text("")
    assert cli.main(["vendor", "--check", str(copied)]) == 1
    out = capsys.readouterr().out
    assert out == "changed: _runtime/log.py\nmissing: _decode/names.py\nadded: mine.py\n"


def test_running_a_copy_does_not_change_it(copied, tmp_path):
    done = python(tmp_path, "-c", "import sense; sense.enable(); sense.trace('x').__enter__()")
    assert done.returncode == 0, done.stderr
    assert cli.main(["vendor", "--check", str(copied)]) == 0


def test_an_older_copy_is_replaced_whole_and_an_edited_one_is_not(copied, capsys):
    assert cli.main(["vendor", str(copied), "--core"]) == 0
    assert not (copied / "cli").exists()
    assert vendor.read_stamp(str(copied)).core
    (copied / "_runtime/log.py").write_text("x = 1\n")
    assert cli.main(["vendor", str(copied)]) == 2
    assert "was edited (_runtime/log.py)" in capsys.readouterr().err
    assert (copied / "_runtime/log.py").read_text() == "x = 1\n"


def test_a_copy_that_cannot_be_finished_leaves_the_older_one(copied, monkeypatch):
    files = 0

    def full(*args, **kwargs):
        nonlocal files
        files += args[1:2] == ("wb",)
        if files > 5:
            raise OSError(28, "No space left on device")
        return open(*args, **kwargs)

    monkeypatch.setattr(vendor, "open", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        vendor.copy(str(copied))
    monkeypatch.undo()
    stamp, difference = vendor.check(str(copied))
    assert stamp.files
    assert not difference
    assert [path.name for path in copied.parent.iterdir() if path.name.startswith(copied.name)] == [copied.name]


def test_a_copy_of_other_content_is_said_to_be_one(copied, capsys, monkeypatch):
    monkeypatch.setattr(vendor, "upstream", lambda core: "another")
    assert cli.main(["vendor", "--check", str(copied)]) == 0
    assert "with other content" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["", "# version: 1\n", None])
def test_what_is_no_copy_is_refused(tmp_path, capsys, damage):
    target = tmp_path / "theirs"
    target.mkdir()
    (target / "precious.py").write_text("")
    if damage is not None:
        (target / "VENDORED").write_text(damage)
    for arguments in (["vendor", str(target)], ["vendor", "--check", str(target)]):
        assert cli.main(arguments) == 2
        assert "VENDORED" in capsys.readouterr().err
    assert (target / "precious.py").exists()


def test_a_stamp_that_was_edited_is_refused(copied, capsys):
    stamp = copied / "VENDORED"
    stamp.write_text(
        re.sub(
            r"^[0-9a-f]{64}  _runtime/log.py$", "0" * 64 + "  _runtime/log.py", stamp.read_text(), flags=re.MULTILINE
        )
    )
    assert cli.main(["vendor", "--check", str(copied)]) == 2
    assert "was edited" in capsys.readouterr().err


def test_the_package_does_not_overwrite_itself(capsys):
    assert cli.main(["vendor", str(ROOT / "gpusense")]) == 2
    assert "this package itself" in capsys.readouterr().err


def test_a_copy_inside_the_package_is_refused(copied, tmp_path):
    done = python(tmp_path, "-m", "sense", "vendor", "sense/inner")
    assert (done.returncode, (copied / "inner").exists()) == (2, False)
    assert "lies inside this package" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
def test_a_link_to_a_folder_stays_a_link(copied, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(copied)
    assert cli.main(["vendor", str(link), "--core"]) == 0
    assert link.is_symlink()
    assert cli.main(["vendor", str(copied), "--core", "--check"]) == 0


def test_a_check_for_the_core_finds_the_whole(copied, capsys):
    assert cli.main(["vendor", str(copied), "--check"]) == 0
    assert cli.main(["vendor", str(copied), "--check", "--core"]) == 1
    assert "whole package, not the core" in capsys.readouterr().out


def test_a_copy_makes_copies(copied, tmp_path):
    done = python(tmp_path, "-m", "sense", "vendor", "--core", "second")
    assert done.returncode == 0, done.stderr
    assert vendor.check(str(tmp_path / "second"))[1] == vendor.Difference()


def test_the_page_lists_what_the_core_leaves_out():
    page = (ROOT / "docs" / "howto" / "vendor.md").read_text("utf-8")
    assert page.split("```text\n")[1].split("```")[0].split() == list(vendor.NOT_CORE)


def test_why_there_is_no_copy_is_a_sentence(tmp_path):
    empty, unreadable = tmp_path / "empty", tmp_path / "unreadable"
    empty.mkdir()
    unreadable.mkdir()
    (unreadable / vendor.STAMP).write_bytes(b"\xff\xfe")
    for place, said in (
        (tmp_path / "none", f"{tmp_path}/none is not a vendored copy: there is no such folder"),
        (empty, f"{empty} is not a vendored copy: it has no file {vendor.STAMP}"),
        (unreadable, f"{unreadable}/{vendor.STAMP} cannot be read: it is not text"),
    ):
        with pytest.raises(vendor.VendorError) as raised:
            vendor.check(str(place))
        assert str(raised.value) == said
