"""The JSON form of metrics: whole, reversible, and readable by those who know less or more."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense import testing
from gpusense._records import metrics_json as form
from gpusense._records.metrics import GROUPS, GpuMetrics, Instance, ProcessUsage, without_values

NUMBERS = st.floats(0, 1e12, allow_nan=False) | st.integers(0, 2**63).map(float)


def value_for(name: str) -> st.SearchStrategy:
    if name == "throttle_reasons":
        return st.lists(st.sampled_from(["idle", "hw_slowdown"]), max_size=3).map(tuple)
    if name in ("unified", "remap_pending", "remap_failed"):
        return st.booleans()
    if name == "scope":
        return st.sampled_from(["gpu", "module"])
    whole = name.endswith(
        ("_bytes", "_ns", "_count", "_state", "generation", "width", "_pages", "_rows", "_xid", "_total")
    )
    return st.integers(0, 2**62) if whole or "ecc" in name or "remapped" in name else NUMBERS


FIELDS = {f"{group}.{name}": value_for(name) for group, empty in GROUPS.items() for name in empty._fields}
SAMPLES = st.fixed_dictionaries({}, optional=FIELDS).map(lambda fields: testing.metrics(testing.device(), fields))


@given(SAMPLES, st.integers(0, 2**62), st.lists(st.tuples(st.text(max_size=8), st.text(max_size=20)), max_size=3))
def test_a_sample_comes_back_as_it_was(sample, now, reasons):
    unique = dict(reasons)
    sample = sample._replace(
        time_ns=now,
        processes=(ProcessUsage(1, 2, None, "a", True),),
        instances=(Instance("MIG-1", 1),),
        reasons=tuple(unique.items()),
    )
    text = json.dumps(form.metrics_to_dict(sample))
    back = form.metrics_from_dict(json.loads(text))
    assert back._replace(reasons=()) == sample._replace(reasons=())
    assert dict(back.reasons) == unique


def test_every_field_has_a_reader():
    full = testing.metrics(testing.device(), {})
    assert form.metrics_from_dict(form.metrics_to_dict(full)) == full


def test_reasons_are_an_object_and_the_first_one_counts():
    sample = testing.metrics(testing.device(), {}, reasons=(("a.b", "first"), ("a.b", "second")))
    assert form.metrics_to_dict(sample)["reasons"] == {"a.b": "first"}
    lost = without_values(sample, "lost", "lost: x")
    assert form.metrics_from_dict(form.metrics_to_dict(lost)).reason("power.draw_watts") == "lost: x"


def test_keys_of_the_future_are_skipped_and_missing_ones_take_their_default():
    row = form.metrics_to_dict(testing.metrics(testing.device(), {"pcie.width": 16}))
    row["flux_capacitor"] = 88
    row["pcie"]["lanes_of_the_future"] = 4
    del row["device"]["uuid"]
    assert form.metrics_from_dict(row).pcie.width == 16
    assert form.metrics_from_dict(row).device.uuid is None


@pytest.mark.parametrize("row", [{}, {"device": 3}, {"device": {}, "time_ns": "x", "monotonic_ns": 1}])
def test_what_is_no_sample_is_a_value_error(row):
    with pytest.raises(ValueError, match=r"GpuMetrics|DeviceInfo"):
        form.metrics_from_dict(row)


def test_a_line_has_the_schema_and_the_devices():
    line = form.line((testing.metrics(testing.device(), {}),), more=1)
    assert line["schema"] == "gpusense.metrics/1"
    assert (line["more"], len(line["devices"])) == (1, 1)
    assert isinstance(form.metrics_from_dict(line["devices"][0]), GpuMetrics)
