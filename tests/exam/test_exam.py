"""gpusense takes the exam: sessions of programs that were recorded on an H200 (two with lavapipe), and of simulated
ones, against what an expert answered beforehand.
"""

import json
import pathlib
import tarfile

import pytest
from support.simulated import PROGRAMS

from gpusense._capi import demangle
from gpusense._records.work import HEAD, TAIL
from gpusense._runtime.config import Settings
from gpusense.analysis.facts import Facts
from gpusense.analysis.findings import ranked
from gpusense.session import load, merge

HERE = pathlib.Path(__file__).resolve().parent
ANSWERS = json.loads((HERE / "answers.json").read_text("utf-8"))
SIMULATED = json.loads((HERE / "answers_simulated.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A folder with the sessions and what each program measured itself."""
    folder = tmp_path_factory.mktemp("exam")
    for path in HERE.glob("sessions*.tar.xz"):
        with tarfile.open(path) as archive:
            for member in archive:
                (folder / pathlib.PurePosixPath(member.name).name).write_bytes(archive.extractfile(member).read())
    return folder


@pytest.fixture(autouse=True)
def readable_names():
    demangle.bring_in()


def session_of(name, folder):
    ranks = ANSWERS[name].get("ranks", 1)
    parts = [f"{name}.rank{rank}" for rank in range(ranks)] if ranks > 1 else [name]
    return merge([load(folder / f"{part}.gpusense") for part in parts]), parts[0]


def mentions(finding, words):
    said = " ".join((finding.title, *finding.evidence, finding.where)).lower()
    return not words or any(word.lower() in said for word in words)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_the_answer_is_the_expert_s(name, recorded):
    session, part = session_of(name, recorded)
    assert len(session.records) <= Settings().max_records  # a live recording, in bounded memory, is the same
    assert len(session.work) <= HEAD + TAIL
    _judge(session, ANSWERS[name], json.loads((recorded / f"{part}.truth.json").read_text("utf-8")))


@pytest.mark.parametrize("name", sorted(SIMULATED))
def test_the_answer_to_what_a_machine_simulates_is_the_expert_s(name):
    machine = PROGRAMS[name]()
    _judge(machine.session(), SIMULATED[name], machine.truth())


def _judge(session, answer, truth):
    facts = Facts(session)
    found = ranked(facts)
    verdict = found[0]
    assert verdict.kind in answer["kind"], f"{verdict.kind}: {verdict.title}"
    assert mentions(verdict, answer["where"]), f"{verdict.title} {verdict.evidence} {verdict.where}"
    assert verdict.phase == answer["phase"], verdict.title
    false_advice = [one.kind for one in found if one.kind in answer["absent"]]
    assert not false_advice, [one.title for one in found]
    if answer["saving_share"] is not None:
        low, high = answer["saving_share"]
        assert low - 0.02 <= verdict.share <= high + 0.02, verdict.title
    if answer.get("step"):
        _check_steps(facts.programs[0].steps, answer, truth)


@pytest.mark.parametrize("name", sorted({**ANSWERS, **SIMULATED}))
def test_the_place_of_an_answer_can_be_missed(name):
    """A number, or a word that any sentence may have, is found by chance."""
    words = {**ANSWERS, **SIMULATED}[name]["where"]
    assert words
    assert all(sum(letter.isalpha() for letter in word) >= 4 for word in words)
    assert not {"kernel", "kernels", "copy", "copies", "device", "stream", "step", "steps"} & set(words)


def _check_steps(steps, answer, truth):
    """The time of a step within 2 %, or that of an inner loop where launches alone do not tell the program's step."""
    assert steps is not None
    if answer["step"] == "facts.phases":
        training = [ms for name, ms in truth["facts"]["phases"] if name == "training"]
        wanted = [sum(training) / len(training)]
    elif answer["step"].startswith("facts."):  # requests that come when they like have no period
        return
    else:
        wanted = [truth["step_ms"], truth["median_step_ms"]] if answer.get("substeps") else [truth[answer["step"]]]
    found = [steps.median_ns / 1e6, steps.mean_ns / 1e6]
    inner = {1, answer.get("substeps") or 1}
    assert any(ms * number == pytest.approx(one, rel=0.02) for ms in found for number in inner for one in wanted), (
        f"{steps.number} of {found} ms, wanted {wanted} ms"
    )
