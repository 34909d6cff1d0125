"""Monitors over scripted sources, which end with the test."""

import pytest
from monitor_rig import Rig


@pytest.fixture
def rig():
    made = Rig()
    yield made
    for one in made.started:
        one.stop()


@pytest.fixture
def two():
    made = Rig(2)
    yield made
    for one in made.started:
        one.stop()


# -- deadlines -----------------------------------------------------------------------------------------------------
