"""``GPUSENSE=on``: CUDA is told whom to call, in a file of the user's cache, and what it calls finds every copy."""

import os
import sys
import time
import types

import pytest

import gpusense
from gpusense._runtime import config
from gpusense._tracing import start
from gpusense.backends.cupti.injection import VARIABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="CUDA calls nobody elsewhere")


@pytest.fixture
def environ(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")  # so that it is as before afterwards
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("GPUSENSE", "on")
    monkeypatch.delenv(VARIABLE)
    return monkeypatch


def named():
    return os.environ.pop(VARIABLE, None)


def test_a_file_that_only_this_user_can_change_is_named_and_made_once(environ):
    start.announce()
    path = named()
    folder, made = os.path.dirname(path), os.stat(path)
    assert (made.st_mode & 0o777, os.stat(folder).st_mode & 0o777, os.listdir(folder)) == (
        *(0o600, 0o700),
        [os.path.basename(path)],
    )
    start.announce()
    assert (named(), os.stat(path)) == (path, made)
    with open(path, "r+b") as file:
        whole = file.read()
        file.truncate(100)
    start.announce()
    assert named() == path
    with open(path, "rb") as file:
        assert file.read() == whole


@pytest.mark.parametrize("word", [*config._MODES, "auto", "soon", "", " ON "])
def test_an_import_sets_it_under_this_mode_alone(environ, word):
    environ.setenv("GPUSENSE", word)
    gpusense._announce()
    assert (named() is not None) is (config.mode() == "on")


def test_another_tools_variable_stays(environ, tmp_path):
    environ.setenv(VARIABLE, "/opt/other.so")
    start.announce()
    assert (named(), os.listdir(tmp_path)) == ("/opt/other.so", [])


@pytest.mark.parametrize("home", ["/dev/full", "/proc", "relative", "another user's"])
def test_where_no_file_can_be_kept_nothing_is_set(environ, tmp_path, home):
    if home == "another user's":
        environ.setattr(os, "geteuid", lambda: os.getuid() + 1)
    else:
        environ.setenv("XDG_CACHE_HOME", home)
        environ.setenv("HOME", "relative")
    start.announce()
    assert named() is None


@pytest.fixture
def copies(environ):
    """``copies(starts, *names)``: modules of these names, and beside each a control that does ``starts``."""

    def put(starts, *names):
        for name in names:
            environ.setitem(sys.modules, name, types.ModuleType(name))
            select = types.ModuleType(name)
            select.control = types.SimpleNamespace(cuda_starts=lambda name=name: starts(name))
            environ.setitem(sys.modules, f"{name.rpartition('.')[0]}.select", select)

    environ.delitem(sys.modules, start.__name__)
    return put


def test_every_copy_in_the_process_is_called_and_no_other_module(copies):
    called = []
    copies(called.append, "host.sense._tracing.start", "gpusense._tracing.start", "app.start", "app.my_tracing.start")
    exec(start._SCRIPT, {})
    assert sorted(called) == ["gpusense._tracing.start", "host.sense._tracing.start"]


def test_what_is_raised_in_the_script_does_not_leave_it(copies):
    copies(lambda _: 1 / 0, "host.sense._tracing.start")
    exec(start._SCRIPT, {})


def test_ctrl_c_in_the_script_comes_once_more(copies):
    def interrupted(_):
        raise KeyboardInterrupt

    def wait():
        for _ in range(500):
            time.sleep(0.01)

    copies(interrupted, "host.sense._tracing.start")
    exec(start._SCRIPT, {})
    with pytest.raises(KeyboardInterrupt):
        wait()
