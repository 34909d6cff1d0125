"""When cuDNN tries its algorithms out, by how it waits between them."""

from support.sessions import MS, US, kernel, session, sync

from gpusense.analysis.facts import Facts
from gpusense.analysis.findings import verdict


def tried(at, algorithms, name="sm80_xmma_fprop_{}"):
    """Each algorithm runs twice: cuDNN waits for the context after the first run, and for an event after the second."""
    records = []
    for number in range(algorithms):
        for wait in ("context_synchronize", "event_synchronize"):
            records += [
                kernel(name.format(number), at, at + 500 * US, correlation_id=at),
                sync(at + 10 * US, at + 510 * US, name=wait),
            ]
            at += 520 * US
    return records, at


def steps(number, *, new=True, name="sm80_xmma_fprop_{}"):
    """Each step compiles for 30 ms, tries six algorithms and then does its work; or does its work alone."""
    records, at = [], 0
    for step in range(number):
        if new:
            found, at = tried(at + 30 * MS, 6, name)
            records += found
        grid = (step + 1, 1, 1)
        for kind in ("bias", "relu", "pool"):
            at += 20 * US
            records.append(kernel(kind, at, at + 2 * MS, grid=grid if new else (1, 1, 1), correlation_id=at))
            at += 2 * MS
    return session(*records, end=at)


def test_pauses_and_trials_are_one_finding_that_says_what_they_are():
    found = verdict(steps(12))
    assert found.kind == "recompilation"
    assert "while cuDNN chooses its algorithms" in found.title
    assert "torch.backends.cudnn.benchmark = False" in found.fix
    step_ns = 30 * MS + 12 * 520 * US + 3 * (2 * MS + 20 * US)
    assert abs(found.share - (30 * MS + 12 * 520 * US) / step_ns) < 0.01


def test_a_convolution_that_is_timed_again_and_again_is_no_trial():
    run = steps(12, name="sm80_xmma_fprop")
    assert not any(view.trials for view in Facts(run).views)
    assert not any(view.trials for view in Facts(steps(12, name="gemm_{}")).views)
    assert not any(view.trials for view in Facts(steps(12, new=False)).views)


def test_outside_a_loop_what_comes_before_trials_is_theirs():
    first, at = tried(400 * MS, 4)
    run = session(kernel("copy_kernel", 0, MS), *first, kernel("relu", at, at + MS), end=at + MS)
    (view,) = Facts(run).views
    assert view.steps is None
    assert len(view.trials) == 1
    assert view.causes["new"].total_ns >= 399 * MS
    assert verdict(run).kind == "recompilation"
