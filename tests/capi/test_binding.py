"""One table, one bind: typed functions, explaining stand-ins, and no state shared with other users of a library."""

import ctypes

import pytest

from gpusense._capi.binding import Missing, bind, missing, prototypes
from gpusense._runtime.errors import GpuSenseError, MissingSymbol

TABLE = prototypes(
    fake_pointer=(ctypes.c_void_p,),
    fake_add=(ctypes.c_int, ctypes.c_int, ctypes.c_int),
    fake_of_next_year=(ctypes.c_int, ctypes.c_int),
)


@pytest.fixture(scope="module")
def path(build_library) -> str:
    return str(build_library("loadable.c", "libloadable.so"))


def test_table_row_is_result_then_arguments():
    assert TABLE["fake_add"] == (ctypes.c_int, (ctypes.c_int, ctypes.c_int))
    assert TABLE["fake_pointer"] == (ctypes.c_void_p, ())


def test_pointers_are_not_truncated(path):
    api = bind(ctypes.CDLL(path), TABLE)
    assert api.fake_pointer() == 0x7F55C8099468B0
    assert api.fake_add(2, 3) == 5


def test_arguments_are_checked(path):
    with pytest.raises(ctypes.ArgumentError):
        bind(ctypes.CDLL(path), TABLE).fake_add("two", 3)


def test_missing_symbol_is_false_and_explains_itself(path):
    api = bind(ctypes.CDLL(path), TABLE, path)
    assert isinstance(api.fake_of_next_year, Missing)
    assert not api.fake_of_next_year
    assert missing(api) == ("fake_of_next_year",)
    with pytest.raises(MissingSymbol, match=rf"{path} has no function fake_of_next_year; a newer"):
        api.fake_of_next_year(1)
    assert issubclass(MissingSymbol, GpuSenseError)


def test_library_without_a_name_is_still_named():
    api = bind(ctypes.CDLL(None), prototypes(no_such_thing_at_all=(ctypes.c_int,)))
    with pytest.raises(MissingSymbol, match="the library has no function no_such_thing_at_all"):
        api.no_such_thing_at_all()


def test_other_users_of_the_library_are_not_disturbed(path):
    library = ctypes.CDLL(path)
    library.fake_add.argtypes = (ctypes.c_char_p,)  # somebody else's mistake, before us
    api = bind(library, TABLE)
    assert api.fake_add(2, 3) == 5
    assert library.fake_add.argtypes == (ctypes.c_char_p,)
    api.fake_add.argtypes = (ctypes.c_double, ctypes.c_double)
    assert bind(library, TABLE).fake_add(2, 3) == 5
