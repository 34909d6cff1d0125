"""Patterns that are compiled later find what patterns that are compiled at once find."""

import re
import subprocess
import sys

import pytest
from support.machine import ROOT

from gpusense._runtime.patterns import pattern

TEXT = "elementwise_kernel<float, 4>(int, float*)"


@pytest.mark.parametrize("use", ["search", "match", "fullmatch", "findall", "split"])
@pytest.mark.parametrize("words", [r"\w+", r"<(\w+), (\d)>", "nothing"])
def test_it_is_the_pattern(words, use):
    later = pattern(words)
    for _ in range(2):
        found, usual = (getattr(one, use)(TEXT) for one in (later, re.compile(words)))
        assert repr(found) == repr(usual)
    assert later.sub("-", TEXT) == re.sub(words, "-", TEXT)
    assert later.pattern == words


def test_what_is_no_method_of_a_pattern_is_none_here():
    with pytest.raises(AttributeError):
        pattern("a").found  # noqa: B018
    with pytest.raises(re.error):
        pattern("(").search("")


def test_no_pattern_of_ours_is_compiled_before_it_is_used():
    code = """
import re, sys
compiled = []
usual = re.compile
def compile(pattern, *flags):
    if "gpusense" in sys._getframe(1).f_code.co_filename:
        compiled.append(pattern)
    return usual(pattern, *flags)
re.compile = compile
from gpusense.cli import run
run.parser()
run._load_what_ending_needs(quiet=False)
print(compiled)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
