"""Print what completes the words of this command in a shell: ``eval "$(gpusense completion bash)"``."""

import argparse
import sys
from typing import NamedTuple

_WHERE = """where it goes:
  bash   eval "$(gpusense completion bash)", in ~/.bashrc
  zsh    source <(gpusense completion zsh), in ~/.zshrc below compinit
  fish   gpusense completion fish | source, in ~/.config/fish/config.fish
"""


class _Verb(NamedTuple):
    """What may follow a verb."""

    name: str
    help: str
    options: dict[str, str]  # by name what each does
    valued: set[str]  # those that a word of their own follows
    words: list[str]  # instead of files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = _WHERE, argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=tuple(_SCRIPTS), metavar="SHELL", help="bash, zsh or fish")


def main(arguments: argparse.Namespace) -> int:
    """0."""
    sys.stdout.write(_SCRIPTS[arguments.shell](_verbs()))
    return 0


def _verbs() -> list[_Verb]:
    from . import VERBS, _present, parser_of

    present = list(_present())
    found = [_Verb("help", "say what a verb does", {}, set(), present)]
    for name in present:
        parser = parser_of(name)
        found.append(_Verb(name, VERBS[name], parser.options(), parser.with_value(), parser.words()))
    return found


def _bash(verbs: list[_Verb]) -> str:
    cases = "".join(
        f'    {one.name}) options="{" ".join(one.options)}" valued=" {" ".join(sorted(one.valued))} "'
        f' words="{" ".join(one.words)}" ;;\n'
        for one in verbs
    )
    return f"""_gpusense() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" options valued words at
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(one.name for one in verbs)}" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}  esac
  if [ "${{COMP_WORDS[1]}}" = run ]; then  # what follows the program is its own
    for ((at = 2; at < COMP_CWORD; at++)); do
      case "${{COMP_WORDS[at]}}" in -*) ;; *) return ;; esac
      case "$valued" in *" ${{COMP_WORDS[at]}} "*) ((at++)) ;; esac
    done
  fi
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
    *) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
  esac
}}
complete -o default -F _gpusense gpusense
"""


def _zsh(verbs: list[_Verb]) -> str:
    named = "\n".join(f"    {_quoted(f'{one.name}:{one.help}')}" for one in verbs)
    cases = "".join(
        f"    {one.name}) options=({' '.join(one.options)}); words_=({' '.join(one.words)}) ;;\n" for one in verbs
    )
    return f"""#compdef gpusense
_gpusense() {{
  local -a verbs options words_
  verbs=(
{named}
  )
  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  case $words[2] in
{cases}  esac
  if [[ $words[CURRENT] == -* ]]; then
    compadd -- $options
  elif (( $#words_ )); then
    compadd -- $words_
  else
    _files
  fi
}}
compdef _gpusense gpusense
"""


def _fish(verbs: list[_Verb]) -> str:
    lines = [f"complete -c gpusense -n __fish_use_subcommand -f -a {one.name} -d {_quoted(one.help)}" for one in verbs]
    for one in verbs:
        head = f"complete -c gpusense -n '__fish_seen_subcommand_from {one.name}'"
        lines += [f"{head} -f -a '{' '.join(one.words)}'"] if one.words else []
        for option, what in one.options.items():
            name = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"{head} {name}{' -r' if option in one.valued else ''} -d {_quoted(what)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """As one word of zsh and of fish."""
    return "'" + " ".join(text.replace("%%", "%").replace("\\", "").replace("'", "’").split()) + "'"


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
