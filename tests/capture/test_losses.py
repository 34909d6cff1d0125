"""What was lost while a block was open."""

from gpusense._capture import losses
from gpusense._capture.losses import Losses


def test_what_grew_between_two_looks_was_lost_somewhere_between():
    found = Losses(0)
    found.look({"dropped": 0}, 10)
    found.look({"dropped": 5, "missed": 1, "kept": 7}, 20)
    found.look({"dropped": 5, "missed": 1, "kept": 9}, 30)
    assert found.between(0, 10) == ""
    assert found.between(20, 30) == ""
    both = "5 records were dropped by the driver, 1 requests of CUPTI found no free buffer"
    assert [found.between(12, 14), found.between(0, 100), found.between(19, 25)] == [both] * 3


def test_losses_one_after_the_other_are_one_and_the_last_ones_too(monkeypatch):
    monkeypatch.setattr(losses, "MAX_KEPT", 10)
    found = Losses(0)
    for at in range(1, 1_000):
        found.look({"dropped": at // 2}, at)
    assert len(found._found["dropped"]) == 10
    assert found.between(0, 1_000).startswith("499 ")
    steady = Losses(0)
    for at in range(1, 100):
        steady.look({"dropped": at}, at)
    assert steady._found["dropped"] == [(0, 99, 99)]
