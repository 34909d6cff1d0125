"""A report in JSON and back: the same session, as far as JSON carries it."""

import json

import pytest
from support.sessions import HOSTILE, MS, US, block, eventful, kernel, session, training

from gpusense._records.records import Aggregate, Counters, UnseenInterval
from gpusense._records.work import WorkTable, kind_of_record
from gpusense._runtime.errors import SessionError
from gpusense.report import json as report
from gpusense.report import text
from gpusense.session import load, save


def counted():
    """A listed kernel, and short ones that are there as rows and as a sum."""
    slow, table = kernel("slow", MS, 2 * MS, path=("step",), grid=(8, 1, 1)), WorkTable()
    table.add(slow)
    kind = table.kind_of(kind_of_record(kernel("short", 0, 0)))
    starts = [slow.end_ns + at * 9 * US for at in range(40)]
    table.append([kind] * 40, [(40, table.path_of(("step",)))], starts, [start + 3 * US for start in starts])
    made = session(
        slow,
        block(("step",), 0, 4 * MS),
        end=5 * MS,
        aggregates=[Aggregate(("step",), "kernel", "short", "cuda", 0, 7, 40, 120 * US, 3 * US, 3 * US, 360 * US * US)],
        unseen=[UnseenInterval(slow.end_ns + 2 * MS, None, "stopped")],
        counters=Counters(seen=42, kept=2, aggregated=40, ignored_records=3),
        mode="live",
        trace_all=False,
    )
    made.take_work(table)
    return made


@pytest.mark.parametrize("made", [counted, training, eventful, session])
def test_a_session_comes_back_from_its_report(tmp_path, made):
    before = made()
    report.write(before, tmp_path / "run.json", indent=2)
    after = load(tmp_path / "run.json")
    assert after.meta == {**before.meta, "path": str(tmp_path / "run.json")}
    assert after.counters == before.counters
    assert after.devices == before.devices
    assert sorted(after.records, key=repr) == sorted(before.records, key=repr)
    for name in ("aggregates", "metrics", "busy", "unseen", "duration_ns", "has_work"):
        assert getattr(after, name) == getattr(before, name)
    assert list(text.full(after)) == list(text.full(before))
    assert after.to_html() == before.to_html()
    assert tuple(after.timeline()) == tuple(before.timeline())
    save(after, tmp_path / "run.gpusense")
    assert list(text.full(load(tmp_path / "run.gpusense"))) == list(text.full(before))


def test_names_that_are_no_text_come_back_readable(tmp_path):
    before = session(*(kernel(name, at, at + 1, path=(name,)) for at, name in enumerate(HOSTILE)), end=MS)
    report.write(before, tmp_path / "run.json")
    after = [record.name for record in load(tmp_path / "run.json").records]
    assert after == [name.replace("\ud800", "\ufffd") for name in HOSTILE]


def changed(tmp_path, change):
    path = tmp_path / "run.json"
    told = counted().to_dict()
    change(told)
    path.write_text(json.dumps(told))
    return load(path)


def test_a_report_of_an_older_version_says_what_it_cannot_tell(tmp_path):
    after = changed(tmp_path, lambda told: told.pop("session"))
    assert "only sums" in after.meta["notes"][0]
    assert after.work.summed == 40
    assert {row.name: row.count for row in after.operations()} == {"slow": 1, "short": 40}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told["records"][0].update(start_ns="noon"), "1 row of records left out: GpuKernel.start_ns"),
        (lambda told: told["records"][0].update(end_ns=1), "1 row of records left out"),
        (lambda told: told["blocks"].append(7), "1 row of blocks left out"),
        (lambda told: told["session"].update(work=["*"]), "the table of work is left out"),
        (lambda told: told["session"].update(work=["AAAA"]), "the table of work is left out"),
        (lambda told: told["session"].update(work=[3]), "the table of work is left out"),
        (lambda told: told.update(counters=None), "1 row of counters left out"),
    ],
)
def test_what_does_not_fit_is_left_out_and_named(tmp_path, change, said):
    after = changed(tmp_path, change)
    assert said in after.meta["damage"][0]
    assert any("damage" in line for line in text.full(after))


def test_wrong_types_of_whole_fields_are_nothing(tmp_path):
    def change(told):
        told.update(meta=[], records=None, blocks={}, metrics="m", session=4, devices=[None])

    after = changed(tmp_path, change)
    assert after.records == []
    assert after.meta["damage"] == ["1 row of devices left out: DeviceInfo: NoneType instead of an object"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"schema": "gpusense.diff/1"}', "JSON of schema 'gpusense.diff/1'; sessions are read from gpusense.report/1"),
        ("{", "no whole JSON"),
        ("{" * 100_000, "no whole JSON"),
        ("[1]", "not a gpusense session"),
    ],
)
def test_other_files_are_refused(tmp_path, content, said):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(SessionError, match=r"other\.json: ") as refused:
        load(path)
    assert said in str(refused.value)


def test_a_higher_threshold_lists_less(tmp_path):
    report.write(training(3), tmp_path / "run.json")
    everything, slow = load(tmp_path / "run.json"), load(tmp_path / "run.json", threshold_us=300)
    assert 0 < len(slow.kernels) < len(everything.kernels)
    assert sum(row.count for row in slow.operations()) == sum(row.count for row in everything.operations())
