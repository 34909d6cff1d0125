"""The form that a suffix stands for."""

import pytest

from gpusense._runtime.errors import GpuSenseError
from gpusense.report import forms


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("a.html", "html"),
        ("A.HTM", "html"),
        ("a.json", "json"),
        ("a.trace.json", "chrome"),
        ("a.speedscope.json", "speedscope"),
        ("a.pftrace", "perfetto"),
        ("a.folded", "flamegraph"),
        ("a.gpusense", "session"),
        ("a.txt", "text"),
        ("a.md", "markdown"),
        ("a.out", None),
        ("folder.html/a", None),
        ("html", None),
    ],
)
def test_the_suffix_is_the_form(path, form):
    assert forms.form_of(path) == form


def test_every_form_is_found_by_each_of_its_suffixes_and_written():
    for name, form in forms.FORMS.items():
        assert all(forms.form_of(f"a{suffix}") == name for suffix in form.suffixes)
        assert callable(form.writer())


@pytest.mark.parametrize(
    ("path", "asked", "form"),
    [
        (None, None, "text"),
        (None, "json", "json"),
        ("-", None, "text"),
        ("-", "html", "html"),
        ("a", None, "text"),
        ("a", "json", "json"),
        ("a.html", None, "html"),
        ("a.gpusense", None, "session"),
        ("a.json", "json", "json"),
        ("a.json", "chrome", "chrome"),
        ("a.html", "json", "the suffix asks for one offline HTML page, --json for one JSON object"),
        ("a.gpusense", "html", "the suffix asks for a session, --html for one offline HTML page"),
        ("a.md", None, "a table in Markdown is not what this command writes; it writes .gpusense, .txt, .json"),
    ],
)
def test_suffix_and_option_choose_the_form_or_contradict_each_other(path, asked, form):
    if " " not in form:
        assert forms.chosen(path, "text", forms.OF_A_SESSION, asked) == form
        return
    with pytest.raises(GpuSenseError, match=form):
        forms.chosen(path, "text", forms.OF_A_SESSION, asked)


def test_a_session_is_not_poured_out():
    with pytest.raises(GpuSenseError, match="-: a session is not written to standard output"):
        forms.chosen("-", "session", forms.OF_A_SESSION)
