"""Loops are found from the order of launches: made-up programs whose steps are known."""

import random
from array import array

import pytest

from gpusense.analysis.steps import find_loop, runs, steady

MS = 1_000_000


class Program:
    """Launches one after the other; small numbers are kernels, those from 900 on copies."""

    def __init__(self):
        self.symbols, self.starts, self.ends, self.at = [], [], [], 10**9

    def launch(self, *symbols, each=10_000, gap=2_000):
        for symbol in symbols:
            self.symbols.append(symbol)
            self.starts.append(self.at)
            self.ends.append(self.at + each)
            self.at += each + gap

    def wait(self, ns):
        self.at += ns

    def loop(self):
        own = [symbol < 900 for symbol in range(1000)]
        ran = [
            (end - start) * own[symbol] for symbol, start, end in zip(self.symbols, self.starts, self.ends, strict=True)
        ]
        return find_loop(array("I", self.symbols), self.starts, self.ends, ran, [1] * len(ran), own)


def start_up(program, seed=1):
    draw = random.Random(seed)
    for _ in range(300):
        program.launch(draw.randrange(100, 140), each=draw.randrange(1_000, 90_000))
        program.wait(draw.randrange(0, 2 * MS))


def test_a_training_after_its_start_up():
    program = Program()
    start_up(program)
    for _ in range(30):
        program.wait(5 * MS)  # for its data
        program.launch(900, *range(60), 1, 2, 3)
    loop = program.loop()
    assert loop.steps in (29, 30)  # the first has nothing before it that tells where it began
    assert loop.period == 64
    usual = 5 * MS + 64 * 12_000
    assert [length for length in loop.lengths[:-1] if length != usual] == []
    assert loop.inner is None
    assert runs(loop) == [(0, loop.steps)]


def test_slow_first_steps_are_not_of_the_steady_state():
    program = Program()
    for step in range(20):
        program.wait(50 * MS if step < 2 else MS)
        program.launch(*range(30))
    first, last = steady(program.loop())
    assert last in (19, 20)
    assert first in (0, 1, 2)  # the anchor may lie behind the wait, and the first step before it


def test_micro_batches_are_within_the_step_of_the_optimizer():
    program = Program()
    for _ in range(20):
        for _ in range(8):
            program.wait(MS)
            program.launch(*range(100))
        program.launch(*range(200, 230))
    loop = program.loop()
    assert loop.period == 830
    assert loop.inner == 8
    assert loop.steps in (19, 20)


def test_layers_are_within_a_token():
    program = Program()
    for _ in range(100):
        program.launch(50, 51)
        for _ in range(24):
            program.launch(*range(9))
        program.launch(60, 61, 62, 63, 900)
    loop = program.loop()
    assert loop.period == 2 + 24 * 9 + 5
    assert loop.steps in (99, 100)


@pytest.mark.parametrize("every", [10, 20, 25])
def test_what_is_saved_now_and_then_is_between_steps(every):
    program = Program()
    for step in range(200):
        program.wait(MS)
        program.launch(*range(80))
        if step % every == every - 1:
            program.launch(*[900] * 40, each=100_000)
    loop = program.loop()
    assert loop.period == 80
    assert abs(loop.steps - 200) <= 2
    breaks = len(runs(loop)) - 1
    assert abs(breaks - 200 // every) <= 1
    usual = MS + 80 * 12_000
    assert sum(loop.ends[i] - loop.starts[i] <= 1.01 * usual for i in range(loop.steps)) == loop.steps


def test_evaluation_between_epochs_is_no_step():
    program = Program()
    for _ in range(4):
        for _ in range(50):
            program.launch(*range(100))
        for _ in range(10):
            program.launch(*range(40), 300)
    loop = program.loop()
    assert loop.period == 100
    assert abs(loop.steps - 200) <= 4


def test_steps_that_differ_a_little_are_steps():
    program, draw = Program(), random.Random(5)
    for _ in range(50):
        program.launch(*range(200), *[draw.randrange(400, 500) for _ in range(draw.randrange(3))])
    assert abs(program.loop().steps - 50) <= 1


def test_one_kernel_again_and_again():
    program = Program()
    for _ in range(200):
        program.launch(7, each=5 * MS)
    loop = program.loop()
    assert loop.period == 1
    assert loop.steps >= 198
    assert loop.lengths[5] == 5 * MS + 2_000


def test_a_program_without_a_loop_has_none():
    program, draw = Program(), random.Random(2)
    for _ in range(60):
        program.launch(draw.randrange(800))
    assert program.loop() is None
    assert find_loop(array("I"), [], [], [], [], []) is None
    assert find_loop(array("I", [1]), [5], [6], [1], [1], [True, True]) is None
    assert find_loop(array("I", [1, 2, 1, 2]), [1, 2, 3, 4], [2, 3, 4, 5], [1] * 4, [1] * 4, [True] * 3) is None


def test_many_launches_take_little_time_and_all_steps_are_found():
    program = Program()
    for _ in range(3_000):
        program.launch(*range(100))
    assert abs(program.loop().steps - 3_000) <= 1
