"""The examples of `python -m sweeps COMMAND --help` are commands that parse."""

import shlex

import pytest

from sweeps.__main__ import EXAMPLES, _parser


@pytest.mark.parametrize("command", list(EXAMPLES))
def test_every_commands_example_parses(command: str) -> None:
    options = _parser().parse_args([command, *shlex.split(EXAMPLES[command])])
    assert options.run.__name__ == command


@pytest.mark.parametrize("command", list(EXAMPLES))
def test_every_commands_help_ends_in_its_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        _parser().parse_args([command, "--help"])
    assert stop.value.code == 0
    assert f"example: python -m sweeps {command} " in " ".join(capsys.readouterr().out.split())
