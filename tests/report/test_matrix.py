"""The picture of who waits in which collective."""

import pytest
from support.ranks import job_rank

from gpusense.analysis.ranks import job_of
from gpusense.report.html import matrix as picture
from gpusense.report.html.data import page_data
from gpusense.report.html.places import Places
from gpusense.session import merge


@pytest.fixture(scope="module")
def job():
    return merge([job_rank(rank, 4, late=2, why="load") for rank in range(4)])


def test_each_cell_is_what_the_rank_waited(job):
    found = page_data(job).facts["matrix"]
    told = job.once(job_of).told
    assert found["rows"] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert found["note"] == "20 collectives of 4 ranks"
    for column, each in enumerate(told.joined):
        assert found["waits"][column] == [
            each.waited_ns(part) for part in sorted(each.parts, key=lambda part: part.rank)
        ]
    assert set(found["late"]) == {2}
    assert found["columns"][7] == "AllReduce number 7, 26.2 MB"


def test_each_column_leads_to_the_timeline(job):
    facts = page_data(job).facts
    start = int(facts["timeline"]["start_ns"])
    for number, each in zip(facts["matrix"]["places"], job.once(job_of).told.joined, strict=True):
        begin, length = facts["places"][number]["at"]
        assert begin + start == each.parts[0].start_ns
        assert length == max(part.end_ns for part in each.parts) - each.parts[0].start_ns


class Numbered(Places):
    def __init__(self):
        pass

    def moment(self, name, start_ns, end_ns, what):
        return 0


def test_many_ranks_and_collectives_share_rows_and_columns_and_the_late_one_keeps_its_own(monkeypatch):
    monkeypatch.setattr(picture, "_ROWS", 8)
    monkeypatch.setattr(picture, "_COLUMNS", 15)
    job = merge([job_rank(rank, 20, each=3, late=13, why="load") for rank in range(20)])
    found = picture.matrix(job, Numbered())
    assert found["rows"][:2] == ["ranks 0 to 2", "ranks 3 to 5"]
    assert len(found["rows"]) <= 8
    assert len(found["columns"]) == 10
    row = found["rows"].index("rank 13")
    assert set(found["late"]) == {row}
    assert all(waits[row] == 0 and waits[0] > 4_000_000 for waits in found["waits"])
    assert found["columns"][0] == "AllReduce number 0 to AllReduce number 1"
    assert found["note"] == "20 collectives of 20 ranks; a column is 2 collectives in a row, with the longest wait"


def test_without_ranks_or_collectives_there_is_none():
    assert page_data(job_rank(0, 1)).facts["matrix"] is None
    silent = merge([job_rank(rank, 2, nccl=False) for rank in range(2)])
    assert page_data(silent).facts["matrix"] is None
