"""Samples of one device, joined: values with values, reasons with what has none."""

from gpusense._records.metrics import GpuMetrics, Memory, Pcie, Power, ProcessUsage, fill, unanswered
from gpusense._records.records import DeviceInfo

DEVICE = DeviceInfo(0, "GPU", "amd", "amd_sysfs")


def sample(**groups) -> GpuMetrics:
    return GpuMetrics(DEVICE, 1, 1, **groups)


def test_no_reason_stands_beside_a_value_after_two_sources_were_joined():
    one = sample(
        power=Power(draw_watts=50.0),
        reasons=(("power.limit_watts", "unsupported: a"), ("pcie.width", "unsupported: b"), ("processes", "stale: c")),
    )
    other = sample(
        power=Power(limit_watts=300.0),
        processes=(ProcessUsage(1),),
        reasons=(("power.draw_watts", "denied: d"), ("pcie.width", "unsupported: e")),
    )
    joined = fill(one, other)
    assert (joined.power.draw_watts, joined.power.limit_watts) == (50.0, 300.0)
    assert joined.reasons == (("pcie.width", "unsupported: b"), ("pcie.width", "unsupported: e"))


def test_a_reason_is_dropped_though_the_other_source_has_none_of_its_own():
    joined = fill(sample(reasons=(("pcie.width", "stale: a"),)), sample(pcie=Pcie(width=16)))
    assert joined.reasons == ()


def test_reasons_of_groups_of_everything_and_of_unknown_words_stay():
    reasons = (("*", "lost: a"), ("memory", "denied: b"), ("something else", "stale: c"))
    found = sample(reasons=reasons)
    assert unanswered(found, reasons) is reasons


def test_memory_of_one_kind_is_never_filled_from_another():
    """Half of a card's own memory beside half of the host's would be neither."""
    own, hosts = Memory(total_bytes=8 << 30, unified=False), Memory(64 << 30, 30 << 30, 34 << 30, unified=True)
    assert fill(sample(memory=own), sample(memory=hosts)).memory == own
    shared = Memory(shared_used_bytes=5)
    assert fill(sample(memory=own), sample(memory=shared)).memory == own._replace(shared_used_bytes=5)
    assert fill(sample(), sample(memory=hosts)).memory == hosts
