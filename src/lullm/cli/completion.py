"""`lullm completion`: completion of commands and flags for a shell, made from the parsers."""

import argparse

from lullm.cli.parser import CommandParser, sub_parsers, with_sub_parsers

SHELLS = ("bash", "zsh", "fish")

EXAMPLES = """\
examples:
  source <(lullm completion bash)          for this shell; the same line in ~/.bashrc for all
  lullm completion fish | source"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm completion`."""
    parser.description = "Print a script that completes commands and flags in a shell."
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    parser.set_defaults(run=_print)


def _print(args: argparse.Namespace) -> int:
    from lullm.cli.main import build_parser  # it has only this command's name

    words = {name: _words(parser) for name, parser in sub_parsers(build_parser()).items()}
    print(_fish(words) if args.shell == "fish" else _bash(words, args.shell))
    return 0


def _words(parser: CommandParser) -> list[str]:
    """The long flags, and the choices of flags and arguments; of this command and its sub-commands."""
    parsers = list(with_sub_parsers(parser))
    flags = [name for each in parsers for name in each.shown_flags if name.startswith("--")]
    choices = [str(choice) for each in parsers for action in each._actions for choice in action.choices or ()]
    return sorted(set(flags)) + sorted(set(choices))


def _bash(words: dict[str, list[str]], shell: str) -> str:
    cases = "\n".join(f"    {name}) words={' '.join(each)!r} ;;" for name, each in sorted(words.items()))
    start = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    # A word without a match completes as a file, since most arguments are folders.
    return f"""{start}_lullm() {{
  local words={" ".join(sorted(words))!r}
  if [ "$COMP_CWORD" -gt 1 ]; then
    case "${{COMP_WORDS[1]}}" in
{cases}
    *) words='' ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _lullm lullm"""


def _fish(words: dict[str, list[str]]) -> str:
    lines = [f"complete -c lullm -n __fish_use_subcommand -a {name}" for name in sorted(words)]
    for name, each in sorted(words.items()):
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c lullm {seen} {f'-l {word[2:]}' if word[:2] == '--' else f'-a {word}'}" for word in each]
    return "\n".join(lines)
