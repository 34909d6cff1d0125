"""What else differs between two sets of runs: clocks, devices, software."""

import pytest
from support.sessions import H100, MS, kernel, sample, session

from gpusense.analysis.conditions import clocks_are_known, conditions, names
from gpusense.analysis.diff import compare


def run(mhz=None, *, busy=90, idle_mhz=345.0, why=(), device=H100, calls=3, **meta):
    metrics = [sample(at * MS, sm_mhz=mhz, gpu=busy, why=why) for at in range(5)] if mhz else []
    metrics += [sample(9 * MS, sm_mhz=idle_mhz, gpu=0)] * 9 if mhz else []
    kernels = (kernel("gemm", at * MS, at * MS + 100) for at in range(calls))
    return session(*kernels, end=10 * MS, metrics=metrics, devices=(device,), **meta)


def test_a_lower_clock_of_a_busy_device_is_told():
    assert conditions([run(1980.0)], [run(1742.0)]) == ["SM clock 12 % lower (1,980 → 1,742 MHz)"]
    assert conditions([run(1742.0)], [run(1980.0)]) == ["SM clock 14 % higher (1,742 → 1,980 MHz)"]
    assert conditions([run(1980.0)], [run(1975.0, idle_mhz=1200.0)]) == []  # idle samples do not count
    assert conditions([run(1980.0)], [run()]) == []


def test_a_comparison_says_that_the_kernels_are_the_same():
    diff = compare([run(1980.0)], [run(1742.0)])
    assert diff.conditions == ("same kernels, SM clock 12 % lower (1,980 → 1,742 MHz)",)
    assert compare([run(1980.0)], [run(1742.0, calls=4)]).conditions == ("SM clock 12 % lower (1,980 → 1,742 MHz)",)


def test_that_clocks_are_not_known_is_told_where_kernels_ran():
    assert clocks_are_known([run(1980.0)], [run(1742.0)])
    assert not clocks_are_known([run(1980.0)], [run()])
    told = "Clocks were not sampled on both sides: a slower GPU cannot be told from slower code."
    assert told in compare([run(1980.0)], [run()]).notes
    assert told not in compare([run(1980.0)], [run(1980.0)]).notes
    assert told not in compare([run(calls=0)], [run(calls=0)]).notes


def test_why_clocks_were_lowered_on_one_side():
    both = [run(1980.0, why=("idle",))], [run(1980.0, why=("idle", "power cap"))]
    assert conditions(*both) == ["clocks were lowered only after: power cap"]
    assert conditions(*reversed(both)) == ["clocks were lowered only before: power cap"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"frameworks": {"torch": "2.9"}}, {"frameworks": {"torch": "2.11"}}, "torch 2.9 → 2.11"),
        ({"frameworks": {}}, {"frameworks": {"torch": "2.11"}}, "torch – → 2.11"),
        ({"driver": "570.1"}, {"driver": "580.2"}, "driver 570.1 → 580.2"),
        ({"python": "3.11.9"}, {"python": "3.13.1"}, "Python 3.11.9 → 3.13.1"),
        ({"version": "0.1.0"}, {"version": "0.2.0"}, "gpusense 0.1.0 → 0.2.0"),
        ({"backends": {"cupti": "12.8"}}, {"backends": {"cupti": "13.0"}}, "cupti 12.8 → 13.0"),
        ({"host": "ci-1"}, {"host": "ci-2"}, "host ci-1 → ci-2"),
        ({"device": H100}, {"device": H100._replace(name="A100")}, "different devices: NVIDIA H100 80GB HBM3 → A100"),
        ({"device": H100._replace(driver="1.0")}, {"device": H100._replace(driver="2.0")}, "driver 1.0 → 2.0"),
    ],
)
def test_versions_that_differ_are_told(before, after, told):
    assert conditions([run(**before)], [run(**after)]) == [told]
    assert conditions([run(**before)], [run(**before)]) == []


def test_another_program_is_told_first():
    def of(command, mhz=1980.0):
        return run(mhz, run={"command": command, "label": "x"})

    assert conditions([of("vae.py")], [of("classifier.py", 1742.0)]) == [
        "program: vae.py → classifier.py",
        "SM clock 12 % lower (1,980 → 1,742 MHz)",
    ]
    seeds = [of(f"vae.py {seed}") for seed in range(5)]
    assert conditions(seeds, [of("a.py"), of("b.py")]) == [
        "program: vae.py 0 or vae.py 1 or vae.py 2 and 2 more → a.py or b.py"
    ]
    assert conditions(seeds, seeds[::-1]) == []
    assert conditions([of("vae.py")], [run(1980.0)]) == []  # of which nobody knows


def test_of_several_runs_all_versions_are_told():
    sides = [run(python="3.11"), run(python="3.12")], [run(python="3.12")]
    assert conditions(*sides) == ["Python 3.11 or 3.12 → 3.12"]


def test_a_file_may_hold_anything():
    assert conditions([run(frameworks=["torch"], backends=3)], [run(frameworks={"to\nrch": 2.9})]) != []
    assert names(run(run="label", path=None)) == ""


def test_a_run_is_called_by_its_label_and_file():
    assert names(run(run={"label": "main"}, path="/runs/before.gpusense")) == "main (before.gpusense)"
    assert names(run(path="/runs/before.gpusense")) == "before.gpusense"
    assert names(run(run={"label": "main"})) == "main"
    assert names(run()) == ""
