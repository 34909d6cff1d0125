"""Files of a job on the command line: few are read whole, of many those that tell."""

import json
import pathlib

import pytest
from support.ranks import job_rank
from support.sessions import MS, T0, block, kernel, sample, session

from gpusense.cli import main
from gpusense.cli._sessions import joined
from gpusense.report import text
from gpusense.session import Session, load, save


def write_job(folder, ranks, **more):
    paths = [folder / f"run.rank{rank}.gpusense" for rank in range(ranks)]
    for rank, path in enumerate(paths):
        save(job_rank(rank, ranks, **more), path)
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("job"), 256, steps=7, each=3, late=77, why="load")


def report(capsys, *arguments):
    assert main(["report", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "page"),
    [
        (("run.rank0", "run.rank1"), "run.html"),
        (("run.rank10", "run.rank11"), "run.html"),
        (("run.host-a", "run.host-b"), "run.host.html"),
        (("before", "after"), "before.html"),
        (("run",), "run.html"),
    ],
)
def test_a_report_of_several_files_is_named_after_what_their_names_have_in_common(tmp_path, names, page):
    for rank, name in enumerate(names):
        save(job_rank(rank, len(names)), tmp_path / f"{name}.gpusense")
    assert main(["report", "--html", *(str(tmp_path / f"{name}.gpusense") for name in names)]) == 0
    assert [path.name for path in tmp_path.glob("*.html")] == [page]


def test_256_ranks_are_one_answer_of_the_length_of_one(many, capsys):
    text = report(capsys, *many)
    said = " ".join(text.split())
    assert text.startswith("gpusense: 256 processes · 256 × NVIDIA H100 80GB HBM3")
    assert "Ranks 0 to 76 and 78 to 255 hardly differ; rank 77 is apart. Work is shown of ranks 0 and 77" in said
    assert "verdict: Rank 77 arrives last in 100 % of 7 collectives, by 5." in said
    assert "its device waits for its host in “step › load”" in said
    table = text.partition("\nRanks\n")[2].partition("\n\n")[0].splitlines()
    assert [line.strip().split("  ")[0] for line in table[1:]] == ["ranks 0 to 76 and 78 to 255", "rank 77"]
    assert len(text.splitlines()) < 180


def test_the_json_of_many_ranks_has_each_of_them(many, capsys):
    answer = json.loads(report(capsys, "--json", *many[:40]))
    (ranks,) = answer["analysis"]["ranks"]
    assert [row["rank"] for row in ranks["ranks"]] == list(range(40))
    assert ranks["collectives"] == 7
    assert {row["collectives"] for row in ranks["ranks"]} == {7}
    assert all(row["compute_ns"] > 2_000_000 for row in ranks["ranks"])
    assert any("216 ranks of a communicator were not recorded" in note for note in ranks["notes"])


def test_order_of_files_damage_and_a_rank_without_collectives(many, tmp_path, capsys):
    paths = [pathlib.Path(path) for path in many[70:90]]
    copies = [tmp_path / path.name for path in reversed(paths)]
    for path, copy in zip(reversed(paths), copies, strict=True):
        copy.write_bytes(path.read_bytes())
    (tmp_path / "run.rank80.gpusense").write_bytes(b"no session")
    whole = (tmp_path / "run.rank81.gpusense").read_bytes()
    (tmp_path / "run.rank81.gpusense").write_bytes(whole[: len(whole) // 2])
    save(job_rank(82, 256, steps=7, each=3, nccl=False), tmp_path / "run.rank82.gpusense")
    text = report(capsys, *map(str, copies))
    said = " ".join(text.split())
    assert "19 processes" in said
    assert "Nothing is known of a rank: " in said
    assert "run.rank80.gpusense" in said
    assert "verdict: Rank 77 arrives last in 100 % of " in said


def test_the_file_of_a_launcher_leads_to_those_of_its_ranks(tmp_path, capsys):
    run = {"id": "7", "command": "torchrun train.py"}
    for rank in range(10):
        one = job_rank(rank, 10, steps=7, each=3, late=4, why="load")
        one.meta |= {"run": run if rank != 9 else {**run, "id": "6"}}  # an older file has a name of this run
        save(one, tmp_path / f"run.rank{rank}.gpusense")
    names = [f"run.rank{rank}.gpusense" for rank in range(10)]
    meta = {"run": run, "children": names, "start_ns": T0, "pid": 1}
    save(Session(meta=meta, metrics=[sample(0, watts=123.0)]), tmp_path / "run.gpusense")
    told = report(capsys, str(tmp_path / "run.gpusense"))
    said = " ".join(told.split())
    assert "9 processes" in said
    assert "Ranks 0 to 3 and 5 to 8 hardly differ; rank 4 is apart. Work is shown of ranks 0 and 4" in said
    # As a run answers: with what it has, and the work of a few.
    answer = joined([load(tmp_path / "run.gpusense")], whole=False)
    assert {answer.work.paths[path][0] for path in answer.work.path} == {"rank 0", "rank 4"}
    assert [one.power.draw_watts for one in answer.metrics].count(123.0) == 1  # what the launcher sampled
    assert "\n".join(text.summary(answer)[:5]) == "\n".join(told.splitlines()[:5])
    assert len(joined([load(tmp_path / "run.gpusense")]).work) == 9 * len(answer.work) // 2


def test_of_many_processes_those_without_a_device_keep_their_blocks(tmp_path, capsys):
    run = {"id": "7", "command": "train.py"}
    for number in range(12):
        passes = block((f"load {number}",), 0, MS, number=1)
        save(session(passes, run=run, pid=number), tmp_path / f"run.{number}.gpusense")
    names = [f"run.{number}.gpusense" for number in range(12)]
    save(session(kernel("k", 0, MS), run=run, pid=99, children=names), tmp_path / "run.gpusense")
    answer = joined([load(tmp_path / "run.gpusense")], whole=False)
    wanted = {(f"process {number}", f"load {number}") for number in range(12)}
    assert {record.path for record in answer.blocks} == wanted
    assert len(answer.work) == 1
    told = report(capsys, str(tmp_path / "run.gpusense"))
    assert all(f"load {number}" in told for number in range(12))


def test_a_launcher_is_no_rank_wherever_it_is_named_and_its_samples_stay(tmp_path, capsys):
    run, names = {"id": "7", "command": "torchrun train.py"}, ["run.rank0.gpusense", "run.rank1.gpusense"]
    for rank, name in enumerate(names):
        one = job_rank(rank, 2, steps=7, each=3, late=1, why="load")
        one.meta |= {"run": run}
        save(one, tmp_path / name)
    watched = [sample(at * MS, watts=123.0) for at in range(5)]
    meta = {"run": run, "children": names, "start_ns": T0, "pid": 1}
    save(Session(meta=meta, metrics=watched), tmp_path / "run.gpusense")
    for order in ([*names, "run.gpusense"], ["run.gpusense", *names]):
        report(capsys, *(str(tmp_path / name) for name in order), "-o", str(tmp_path / "all.json"))
        found = load(tmp_path / "all.json")
        assert [one["rank"] for one in found.meta["processes"]] == [0, 1]
        assert [one.power.draw_watts for one in found.metrics].count(123.0) == len(watched)


def test_files_of_nothing_but_damage_are_an_error(tmp_path, capsys):
    for number in range(9):
        (tmp_path / f"{number}.gpusense").write_bytes(b"no session")
    assert main(["report", *(str(path) for path in sorted(tmp_path.iterdir()))]) != 0
    assert "0.gpusense" in capsys.readouterr().err


def test_what_another_program_reads_has_the_work_of_all(many, tmp_path, capsys):
    report(capsys, *many[:9], "-o", str(tmp_path / "all.trace.json"))
    events = json.loads((tmp_path / "all.trace.json").read_text("utf-8"))["traceEvents"]
    assert sum(event.get("name") == "layer_1" for event in events) == 9 * 7
