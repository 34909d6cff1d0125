"""What ``gpusense completion`` prints: bash completes with it, and it names every verb and option in every shell."""

import shutil
import subprocess

import pytest

from gpusense import cli


def printed(capsys, shell):
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash")
def test_bash_completes_verbs_options_and_words(capsys):
    asked = {
        "gpusense re": "report",
        "gpusense run --tr": "--trace-all",
        "gpusense run --label name --syscalls --tr": "--trace-all",
        "gpusense run train.py --tr": "",  # which are the program's
        "gpusense run -o run.gpusense train.py --tr": "",
        "gpusense report --fl": "--flamegraph",
        "gpusense completion f": "fish",
        "gpusense help di": "diff",
        "gpusense import s": "",
        "gpusense nothing --": "",
    }
    lines = [
        f'COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}; _gpusense; echo "${{COMPREPLY[*]}}"'
        for line in asked
    ]
    script = "\n".join([printed(capsys, "bash"), *lines])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert dict(zip(asked, done.stdout.splitlines(), strict=True)) == asked


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_and_option_is_there(capsys, shell):
    script = printed(capsys, shell)
    for verb in cli._present():
        assert verb in script
        for action in cli.parser_of(verb)._actions:
            assert all(option.lstrip("-") in script for option in action.option_strings)
    assert script.count("'") % 2 == 0


def test_another_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["completion", "tcsh"])
    assert left.value.code == 2
    assert "tcsh" in capsys.readouterr().err
