"""The one table of backends, how one is opened, and the devices over all."""

import sys
import types

import pytest

from gpusense import backends, testing
from gpusense._records.protocols import Backend
from gpusense._records.records import Unavailable
from gpusense._runtime import config


@pytest.fixture
def row(monkeypatch):
    """Puts a backend "acme" into the table whose ``open()`` is the argument; None: its module is not there."""

    def put(opens, *roles):
        monkeypatch.setattr(backends, "BACKENDS", (backends.Row("acme", "acme", roles),))
        if opens is not None:
            module = types.ModuleType("gpusense.backends.acme")
            module.open = opens
            monkeypatch.setitem(sys.modules, "gpusense.backends.acme", module)

    return put


def test_settings_know_every_backend_and_its_precedence():
    assert tuple(row.name for row in backends.BACKENDS) == config.BACKEND_NAMES


def test_roles_are_parts_of_a_backend():
    assert {role for row in backends.BACKENDS for role in row.roles} == {"devices", "metrics", "activity"}
    assert {"devices", "metrics", "activity"} < set(Backend._fields)
    assert backends.names("metrics") == ("nvml", "amd_sysfs", "rocm_smi", "drm_files")


def test_every_backend_answers_with_the_parts_of_its_row_or_a_reason():
    for row in backends.BACKENDS:
        opened = backends.open_backend(row.name)
        if isinstance(opened, Unavailable):
            assert opened.reason, row
        else:
            assert opened.name == row.name
            assert {role for role in ("devices", "metrics", "activity") if getattr(opened, role)} <= set(row.roles)


def test_a_name_without_a_row_is_a_reason():
    assert backends.open_backend("nonsense") == Unavailable(
        "nonsense", "no backend has this name", ", ".join(config.BACKEND_NAMES)
    )


def test_a_backend_that_is_not_in_this_copy_is_a_reason(row):
    row(None)
    assert backends.open_backend("acme") == Unavailable("acme", "not part of this copy of the package")


def test_a_module_that_a_backend_lacks_is_named(row):
    def opens():
        import a_module_that_is_not_there  # noqa: F401

    row(opens)
    assert backends.open_backend("acme").reason == "No module named 'a_module_that_is_not_there'"


def test_a_backend_that_fails_is_a_reason(row):
    def opens():
        raise OSError("the driver is broken")

    row(opens)
    assert backends.open_backend("acme") == Unavailable("acme", "OSError: the driver is broken")


def test_devices_of_a_backend_that_fails_to_list_them_are_left_out(row):
    class Broken:
        def devices(self):
            raise RuntimeError("the driver went away")

    row(lambda: Backend("acme", devices=Broken()), "devices")
    assert backends.all_devices() == ((), ())


def test_a_backend_that_was_silent_before_is_not_asked_again(row):
    row(lambda: Backend("acme", devices=testing.ScriptedSource(devices=[testing.device(0)])), "devices")
    found, silent = backends.all_devices()
    assert (len(found), silent) == (1, ())
    assert backends.all_devices(without=["acme"]) == ((), ("acme",))
