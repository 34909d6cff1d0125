"""What a block is called that got no name."""

import contextlib

import pytest

import gpusense
from gpusense._tracing.caller import called_from


def names(tracer):
    return [record.name for record in sorted(tracer.session().blocks, key=lambda record: record.start_ns)]


def test_a_block_without_a_name_is_named_by_function_and_line(tracer):
    with gpusense.trace() as block:
        line = called_from().partition(":")[2]
    before = int(line.rstrip(")")) - 1
    assert block.name == f"test_a_block_without_a_name_is_named_by_function_and_line (test_caller.py:{before})"
    with contextlib.ExitStack() as stack:
        stack.enter_context(gpusense.trace(attributes={"batch": 3}))
    assert names(tracer)[1].startswith("test_a_block_without_a_name_is_named_by_function_and_line (test_caller.py:")


def test_it_keeps_the_name_when_it_is_used_again(tracer):
    block = gpusense.trace()
    for _ in range(2):
        with block:
            pass
    assert len(set(names(tracer))) == 1


def test_a_decorated_function_has_its_own_name(tracer):
    @gpusense.trace(attributes={"batch": 3})
    def train():
        pass

    train()
    assert names(tracer)[0].endswith("train")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/srv/train.py", "train.py:1"),
        (r"C:\work\train.py", "train.py:1"),
        ("<stdin>", "<stdin>:1"),
        ("/tmp/ipykernel_12/345678.py", "cell:1"),
        ("<ipython-input-3-ab>", "cell:1"),
    ],
)
def test_files_and_cells(path, name):
    found = {"called_from": called_from}
    exec(compile("name = called_from()\ndef f():\n    return called_from()", path, "exec"), found)
    assert found["name"] == name
    assert found["f"]() == f"f ({name[:-1]}3)"


def test_where_nothing_is_recorded_there_is_no_name_and_no_fault(tracer):
    tracer.disable()
    with gpusense.trace() as block:
        pass
    assert str(block.summary()).startswith("block: ")
