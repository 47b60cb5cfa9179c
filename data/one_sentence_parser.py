"""argparse whose complaints are one sentence with the closest option, in place of its usage and the types of Python."""

import argparse
import difflib
import re
from typing import NoReturn


class OneSentenceParser(argparse.ArgumentParser):
    """Raises ValueError where argparse would print its usage and end the process."""

    def error(self, message: str) -> NoReturn:
        """argparse's message, with what may have been meant."""
        raise ValueError(self._sentence(message))

    def _sentence(self, message: str) -> str:
        options = sorted(_options(self))
        helps = f"; say {self.prog} --help"
        if found := re.match(r"unrecognized arguments: (\S+)", message):
            word = found[1].partition("=")[0]
            if not word.startswith("-"):
                return f"{word} stands alone on the command line; write options as --NAME VALUE{helps}"
            near = difflib.get_close_matches(word, options, n=1)
            meant = f"did you mean {near[0]}?" if near else f"the options are {', '.join(options)}"
            return f"{word} is no option; {meant}"
        if found := re.match(r"the following arguments are required: (.*)", message):
            return f"{found[1]} must be given{helps}"
        if found := re.match(r"argument ([^:]+): expected (one|at least one) argument", message):
            return f"{found[1]} has no value; give one{helps}"
        if found := re.match(r"argument ([^:]+): invalid choice: (.*?) \(choose from (.*)\)$", message):
            return f"{found[1]} is {_bare(found[2])}; choose from {_bare(found[3])}"
        if found := re.match(r"argument ([^:]+): invalid (\w+) value: (.*)$", message):
            kind = {"int": "a whole number", "float": "a number"}.get(found[2], "a value as its help says")
            return f"{found[1]} is {_bare(found[3])}; give {kind}"
        if found := re.match(r"argument ([^:]+): (.*)$", message):
            return f"{found[1]}: {found[2]}"
        return message


def _options(parser: argparse.ArgumentParser) -> set[str]:
    """Its own and those of its commands: argparse hands what a command does not know back to the parser above."""
    found = {option for action in parser._actions for option in action.option_strings if option.startswith("--")}
    commands = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return found.union(*(_options(one) for action in commands for one in action.choices.values()))


def _bare(text: str) -> str:
    return text.replace("'", "") or "empty"
