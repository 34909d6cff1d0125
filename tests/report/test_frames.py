"""Data frames: columns of every kind, in whichever library is there. Stand-ins say what they were handed."""

import sys
import types

import pytest
from support.sessions import MS, T0, eventful, session, training

from gpusense._records.counter_samples import FIELDS, CounterColumns
from gpusense._records.counters import CounterSample
from gpusense.report import frames


def library(name):
    """A module that keeps what a frame is made of."""
    made = types.ModuleType(name)
    made.DataFrame = lambda columns, **_: types.SimpleNamespace(by=name, columns=columns)
    made.array = lambda values, dtype: (dtype, values)
    return made


@pytest.fixture
def pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", library("pandas"))
    monkeypatch.setitem(sys.modules, "polars", library("polars"))


@pytest.mark.parametrize("kind", frames.KINDS)
def test_every_kind_has_the_columns_that_it_has_without_a_row(pandas, kind):
    full, empty = training(4).to_dataframe(kind).columns, session().to_dataframe(kind).columns
    assert list(full) == list(empty)
    plain = {name: values[1] if type(values) is tuple else values for name, values in full.items()}
    assert len({len(values) for values in plain.values()}) == 1
    cells = {type(value) for values in plain.values() for value in values}
    assert cells <= {int, float, str, bool, type(None)}
    never = ("allocations", "counters", "syscalls", "block_counters", "counter_samples")
    assert len(next(iter(plain.values()))) > 0 or kind in never


def test_rows_are_what_the_session_says(pandas):
    run = eventful()
    columns = run.to_dataframe("kernels").columns
    kernels = sorted(run.kernels, key=lambda record: (record.start_ns, record.device))
    found = sorted(zip(*(columns[name] for name in ("start_ns", "device", "name", "path")), strict=True))
    assert found == [(one.start_ns, one.device, one.name, "/".join(one.path)) for one in kernels]
    assert columns["duration_ns"] == [
        end - start for start, end in zip(columns["start_ns"], columns["end_ns"], strict=True)
    ]
    assert run.to_dataframe().columns["name"] == [row.name for row in run.operations()]
    assert run.to_dataframe("metrics").columns["power.draw_watts"] == [300.0] * 11
    (row,) = zip(*run.to_dataframe("block_counters").columns.values(), strict=True)
    assert row[:4] == ("step", T0 + 10 * MS, T0 + 15 * MS, 5 * MS)


def test_samples_of_counters_are_rows_of_what_was_counted(pandas):
    run = eventful()
    (part,) = run.counter_samples.parts()
    part.column("sm_active_percent")[3] = float("nan")
    other = CounterColumns(1, ("tensor_percent",))
    other.start.append(T0)
    other.end.append(T0 + MS)
    other.values[0].append(25.0)
    run.counter_samples.add(other)
    columns = run.to_dataframe("counter_samples").columns
    assert list(columns) == ["device", "start_ns", "end_ns", "duration_ns", *FIELDS]
    for name in CounterSample._fields:
        assert columns[name] == [getattr(sample, name) for sample in run.counter_samples]
    assert columns["duration_ns"] == [MS] * 101
    assert columns["sm_active_percent"][2:5] == [75.0, None, 75.0]


def test_whole_numbers_that_are_not_all_known_stay_whole(pandas):
    kind, values = training(4).to_dataframe("kernels").columns["registers_per_thread"]
    assert kind == "Int64"
    assert set(values) == {64, None}


def test_the_library_that_the_program_has_imported_comes_first(monkeypatch):
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setitem(sys.modules, "polars", library("polars"))
    assert session().to_dataframe("blocks").by == "polars"


def test_without_either_library_both_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # importing it raises
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ModuleNotFoundError, match="needs pandas or polars, and neither is installed"):
        session().to_dataframe()


def test_an_unknown_kind_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="knows no 'kernel'; there are operations, blocks"):
        session().to_dataframe("kernel")
