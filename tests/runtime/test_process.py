"""Hooks of fork and exit, questions with a time limit, and files behind descriptors."""

import os
import threading

import pytest

from gpusense._runtime import process

OWNERS = """
import gc, os, sys
from gpusense._runtime import process
class Owner:
    def __init__(self, name): self.name = name; process.register(self)
    # In one piece: parent and child speak at once.
    def say(self, what): os.write(1, f"{what} {self.name}\\n".encode())
    def at_exit(self): self.say("exit")
    def after_fork_in_child(self): self.say("child")
class Careful(Owner):
    def before_fork(self): self.say("before")
    def after_fork_in_parent(self): self.say("parent")
class Broken(Owner):
    def at_exit(self): raise ValueError("must not be seen")
    after_fork_in_child = at_exit
"""


def test_owners_end_in_reverse_order_and_what_they_raise_is_not_seen(run_python):
    done = run_python(OWNERS + "kept = Owner('one'), Broken('two'), Owner('three')\nOwner('gone'); gc.collect()")
    assert (done.stdout.split("\n"), done.stderr) == (["exit three", "exit one", ""], "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_calls_every_owner_that_is_left(run_python):
    code = """
kept = Owner("one"), Broken("two"), Careful("three")
if os.fork() == 0: os._exit(0)
os.wait()
os._exit(0)
"""
    lines = run_python(OWNERS + code).stdout.split("\n")[:-1]
    assert sorted(line for line in lines if line.startswith("child")) == ["child one", "child three"]
    around = [line for line in lines if line.startswith(("before", "parent"))]
    assert around == ["before three", "parent three"]


def test_an_answer_in_time_is_given_and_its_question_forgotten():
    assert process.answer(lambda: 7, "gpusense-test", 0) == 7
    assert process.answer(lambda: 8, "gpusense-test", 0) == 8


def test_who_asks_again_waits_for_the_question_that_hangs_and_not_beside_it(monkeypatch):
    monkeypatch.setattr(process, "PATIENCE_S", 0.05)
    release, asked = threading.Event(), []

    def hang():
        asked.append(threading.current_thread())
        release.wait()
        return 7

    assert [process.answer(hang, "gpusense-test", "silent") for _ in range(3)] == ["silent"] * 3
    (thread,) = asked
    assert thread.name == "gpusense-test"
    release.set()
    thread.join()
    assert process.answer(lambda: 9, "gpusense-test", "silent") == 9


def test_where_no_thread_can_be_started_the_caller_asks(monkeypatch):
    monkeypatch.setattr(process.threads, "start", lambda *_: None)
    assert process.answer(threading.get_ident, "gpusense-test", 0) == threading.get_ident()


def test_a_descriptor_stands_for_a_file(tmp_path):
    with open(tmp_path / "one", "wb") as one, open(tmp_path / "one", "rb") as same, open(tmp_path / "two", "wb") as two:
        assert process.file_of(one.fileno()) == process.file_of(same.fileno()) != process.file_of(two.fileno())
        number = two.fileno()
    assert process.file_of(number) is None
    assert process.file_of(1 << 70) is None
