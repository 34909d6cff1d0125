"""Annotations of fields, taken apart."""

from typing import Any, Literal, Optional, get_args

import pytest

from gpusense._records import json_codec, validate
from gpusense._records.hints import FieldType, field_type, reader
from gpusense._records.metrics import GpuMetrics
from gpusense._records.records import KINDS, DeviceInfo


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (int, FieldType(int)),
        (Any, FieldType(Any)),
        (str | None, FieldType(str, (), True)),
        (Optional[float], FieldType(float, (), True)),  # noqa: UP045 - as a host may write it
        (tuple[int, int, int], FieldType(tuple, (int, int, int))),
        (tuple[str, ...] | None, FieldType(tuple, (str, ...), True)),
        (dict[str, Any] | None, FieldType(dict, (str, Any), True)),
        (Literal["a", "b"], FieldType(Literal, ("a", "b"))),
        (DeviceInfo, FieldType(DeviceInfo)),
    ],
)
def test_a_hint_taken_apart(hint, expected):
    assert field_type(hint) == expected


@pytest.mark.parametrize("hint", [int | str, int | str | None, list[int], bytes, None])
def test_a_hint_that_no_field_has_is_refused(hint):
    with pytest.raises(TypeError, match="no field is of type"):
        field_type(hint)


def test_none_passes_where_it_is_a_value():
    made = []

    def make(kind):
        made.append(kind)
        return lambda value: value + 1

    assert reader(int | None, make)(None) is None
    assert reader(int | None, make)(1) == 2
    with pytest.raises(TypeError):
        reader(int, make)(None)
    assert [kind.base for kind in made] == [int] * 3


def test_every_field_of_every_record_has_its_readers():
    for cls in KINDS:
        assert set(json_codec.readers_of(cls)) == set(validate.readers_of(cls)) == set(cls._fields)
    groups = [hint for hint in GpuMetrics.__annotations__.values() if hasattr(hint, "_fields")]
    assert len(groups) > 8
    for cls in (GpuMetrics, *groups):
        assert set(json_codec.readers_of(cls)) == set(cls._fields)
        assert all(get_args(hint) or field_type(hint) for hint in cls.__annotations__.values())
