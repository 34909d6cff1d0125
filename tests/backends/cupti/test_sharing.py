"""How copies of gpusense in one process come to terms about the overhead budget, on a hub made by hand."""

from types import SimpleNamespace

import pytest

from gpusense._aggregation.threshold import Threshold
from gpusense._capture import budget as _budget
from gpusense._capture.budget import BudgetKeeper
from gpusense.backends.cupti import sharing
from gpusense.backends.cupti.sharing import Pause, Sharing


class Hub:
    """What the copies share, as a dict of functions; no CUPTI below."""

    def __init__(self):
        self.members, self.ended, self.lasting, self.asked = [], [], None, []

    def shared(self):
        return {
            "wants": lambda: list(self.members),
            "cpu_ns": lambda: 1000,
            "pause_kinds": self.pause_kinds,
            "pauses": lambda after: (len(self.ended), self.ended[after:], self.lasting),
        }

    def pause_kinds(self, kinds, by):
        self.asked.append(sorted(kinds))
        if kinds and self.lasting is None:
            self.lasting = 100, None, by
        elif not kinds and self.lasting is not None:
            self.ended.append((100, 300, self.lasting[2]))
            self.lasting = None
        return True

    def join(self, kinds=(10, 2)):
        copy = Sharing()
        self.members.append(copy.begin(kinds, 1 << 20))
        copy.met(self.shared())
        return copy


@pytest.fixture
def hub():
    return Hub()


def test_a_copy_alone_agrees_with_itself():
    copy = Sharing()
    assert copy.agree(0.02, 500) == (0.02, 0, True)
    assert copy.agree(0.02, 700) == (0.02, 200, True)
    assert not copy.pause_kinds(True)
    assert copy.pauses() == ([], None)
    assert copy.others_markers == frozenset()


def test_pauses_are_told_by_the_wall_clock_and_reported_by_the_clock_of_the_session(hub, monkeypatch):
    monkeypatch.setattr(sharing, "SESSION", SimpleNamespace(of_wall=lambda time: time - 90))
    copy = hub.join()
    copy.pause_kinds(True)
    assert copy.pauses() == ([], Pause(10, None, True))
    copy.pause_kinds(False)
    assert copy.pauses() == ([Pause(10, 210, True)], None)


def test_the_smallest_budget_holds_and_its_owner_leads(hub):
    one, two, three = hub.join(), hub.join(), hub.join()
    assert one.agree(0.05, 0) == (0.05, 1000, True)
    assert two.agree(None, 0).leads is False
    assert three.agree(0.01, 0) == (0.01, 1000, True)
    assert one.agree(0.05, 0) == (0.01, 1000, False)
    assert two.agree(None, 0) == (0.01, 1000, False)
    assert two.agree(0.01, 0).leads is True  # of equals the first
    assert three.agree(0.01, 0).leads is False


def test_the_time_of_all_copies_counts_from_when_they_joined(hub):
    one, two = hub.join(), hub.join()
    one.agree(None, 5_000_000)
    two.agree(None, 70)
    one.agree(None, 5_000_300)
    assert two.agree(None, 90).spent_ns == 1000 + 300 + 20
    hub.members.pop(0)
    assert two.agree(None, 95).spent_ns == 1000 + 25


def test_all_kinds_of_all_copies_rest_but_the_one_that_markers_need(hub):
    one, _ = hub.join((10, 2, 1)), hub.join((10, 2, 38))
    one.pause_kinds(True)
    assert hub.asked == [[1, 10, 38]]


def test_stretches_are_told_to_all_once_and_say_whose_they_are(hub):
    one = hub.join()
    one.pause_kinds(True)
    one.pause_kinds(False)
    two = hub.join()  # later: what was before is not its own
    assert two.pauses() == ([], None)
    one.pause_kinds(True)
    assert one.pauses() == ([Pause(100, 300, True)], Pause(100, None, True))
    assert two.pauses() == ([], Pause(100, None, False))
    one.pause_kinds(False)
    assert two.pauses() == ([Pause(100, 300, False)], None)
    assert two.pauses() == ([], None)


def test_streams_on_which_others_mark_their_blocks(hub):
    one, two, three = hub.join(), hub.join(), hub.join()
    one.marks(3, 47)
    two.marks(None, 48)
    three.marks(None, None)
    assert one.others_markers == {(None, 48)}
    assert three.others_markers == {(3, 47), (None, 48)}
    del hub.members[0]["marker_context"]  # as an older version says it
    assert three.others_markers == {(None, 47), (None, 48)}


class Capture:
    running = True

    def __init__(self, sharing):
        self.sharing = sharing
        self.flushes = 0

    def flush(self):
        self.flushes += 1

    def hold_lines(self, held):
        self.held = held


@pytest.fixture
def clock(monkeypatch):
    now = [1_000_000_000]
    monkeypatch.setattr(_budget, "time_ns", lambda: now[0])
    return now


def busy(clock, keeper, threshold, capture, rounds, spent=0):
    """Rounds of a second, in which this copy's threads spend half of one."""
    for _ in range(rounds):
        clock[0] += 1_000_000_000
        spent += 500_000_000
        keeper.note(capture)
        keeper.switch(keeper.step(spent, threshold, capture), capture)
    return spent


def test_the_leader_switches_for_all_and_the_other_says_why(hub, clock):
    strict, loose = Capture(hub.join()), Capture(hub.join())
    unseen, others_unseen = [], []
    keeper, other = BudgetKeeper(unseen), BudgetKeeper(others_unseen)
    keeper.begin(0.01)
    other.begin(None)
    threshold, others_threshold = Threshold(100_000, 1000), Threshold(100_000, 1000)
    keeper.step(0, threshold, strict)
    spent = busy(clock, keeper, threshold, strict, 3)
    assert hub.lasting is not None
    assert strict.flushes == 1
    busy(clock, other, others_threshold, loose, 3)
    assert loose.flushes == 0
    assert other.facts(clock[0], others_threshold)["budget"] == 0.01
    assert other.facts(clock[0], others_threshold)["observed"] < 1
    assert other.lasting().reason == _budget.OTHERS_REASON
    keeper.begin(None)
    busy(clock, keeper, threshold, strict, 1, spent)
    assert hub.lasting is None
    other.note(loose)
    keeper.note(strict)
    assert [pause.reason for pause in others_unseen] == [_budget.OTHERS_REASON]
    assert [pause.reason for pause in unseen] == [_budget.REASON]
    assert other.lasting() is keeper.lasting() is None


def test_the_other_budget_going_away_gives_the_threshold_back(hub, clock):
    strict, loose = Capture(hub.join()), Capture(hub.join())
    keeper, other = BudgetKeeper([]), BudgetKeeper([])
    keeper.begin(0.01)
    threshold = Threshold(100_000, 10**9)
    keeper.step(0, Threshold(0, 1), strict)
    spent = 0
    for _ in range(3):
        threshold.choose([10**9] * 100, 10**9)  # records are kept, so that a higher threshold would help
        spent = busy(clock, other, threshold, loose, 1, spent)
    assert threshold.effective_ns > 100_000
    keeper.begin(None)
    keeper.step(0, Threshold(0, 1), strict)
    busy(clock, other, threshold, loose, 1, spent)
    assert threshold.effective_ns == 100_000
    assert other.facts(clock[0], threshold) == {}


def test_many_stretches_become_one(hub, clock, monkeypatch):
    monkeypatch.setattr(_budget, "MAX_UNSEEN", 3)
    copy = Capture(hub.join())
    unseen = []
    keeper = BudgetKeeper(unseen)
    keeper.begin(0.5)
    for _ in range(5):
        copy.sharing.pause_kinds(True)
        copy.sharing.pause_kinds(False)
        keeper.note(copy)
    assert len(unseen) == 3
    assert unseen[-1].reason == f"{_budget.REASON}; capture was on for a part of this time"
