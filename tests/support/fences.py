"""Runs what the pages tell a reader to do: ``python fences.py PLAN``, a JSON list of ``[page, steps]``.

A step is ``[language, file name or null, text]``. Python of one page shares its names; commands run in a folder of
the page, with what earlier ones wrote. This process imports the command once and never uses it: each command of the
page is a fork.
"""

import json
import os
import re
import subprocess
import sys
import traceback
from glob import glob
from importlib import import_module

#: A command of ours with nothing in it that takes a shell, but for variables before it and stars.
PLAIN = re.compile(r"((?:[A-Z_]+=[\w.,/]+ )*)gpusense((?: +(?:'[^']*'|\"[^\"$`]*\"|[\w@%=+:,./*-]+))*) *(?:#.*)?")
WORD = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^\s'\"]+)")


def forked(work) -> int:
    """What ``work()`` ends with, in a process of its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        sys.exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def command(variables: str, text: str):
    """Of one line; called where nothing else will run."""
    from gpusense import cli

    os.environ.update(word.split("=", 1) for word in variables.split())
    words: list[str] = []
    for *quoted, bare in WORD.findall(text):
        words += sorted(glob(bare)) if "*" in bare else [bare or "".join(quoted)]
    sys.argv[:] = ["gpusense", *words]
    return cli.main(words)


def shell(text: str) -> int:
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    plain = [PLAIN.fullmatch(line) for line in lines]
    if not all(plain):
        return subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=False).returncode
    for found in plain:
        if code := forked(lambda found=found: command(found[1], found[2])):
            print(f"{found[0]} ended with {code}")
            return code
    return 0


class Names:
    """The Python of one page, in a process of its own that waits for the next fence."""

    def __init__(self) -> None:
        here, there = os.pipe(), os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(here[1])
            os.close(there[0])
            self._serve(os.fdopen(here[0]), os.fdopen(there[1], "w"))
            sys.exit()
        os.close(here[0])
        os.close(there[1])
        self._ask, self._answer = os.fdopen(here[1], "w"), os.fdopen(there[0])

    def _serve(self, asked, answer) -> None:
        names = {"__name__": "__main__"}
        for line in asked:
            try:
                exec(compile(json.loads(line), "fence", "exec"), names)
                print(0, file=answer, flush=True)
            except BaseException:
                traceback.print_exc(file=sys.stdout)
                print(1, file=answer, flush=True)
            sys.stdout.flush()

    def run(self, text: str) -> int:
        print(json.dumps(text), file=self._ask, flush=True)
        return int(self._answer.readline() or 1)

    def end(self) -> int:
        self._ask.close()
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])


def followed(steps) -> str:
    """The step of a page that failed, or an empty text."""
    names = Names() if any(language == "python" and not name for language, name, _ in steps) else None
    for language, name, text in steps:
        if name:
            with open(name, "w", encoding="utf-8") as file:
                file.write(text)
        elif names.run(text) if language == "python" else shell(text):
            return text
    return "as its Python ended" if names and names.end() else ""


def page_of(page: str, steps) -> int:
    """In a process of its own, with what is printed in ``PAGE.txt``."""
    with open(f"{page}.txt", "wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.mkdir(page)
    os.chdir(page)
    failed = followed(steps)
    if failed:
        print(f"failed:\n{failed}")
    return bool(failed)


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    for module in ("run", "report", "diff", "demo", "doctor", "_ending"):
        import_module(f"gpusense.cli.{module}")
    return sum(forked(lambda page=page, steps=steps: page_of(page, steps)) != 0 for page, steps in plan)


if __name__ == "__main__":
    sys.exit(main())
