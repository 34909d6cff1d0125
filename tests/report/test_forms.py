"""The form that a suffix stands for."""

import pytest

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
        ("a.gpusense", None),
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
