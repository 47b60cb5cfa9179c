"""Every mistake on the command line is one line that starts with `error:`, names what was given and what to do."""

import pytest

from prnn_ext import __main__ as command

MISTAKES = {
    "": "command must be given",
    "pln": "command is pln; choose from benchmark, plan, build",
    "plan": "--hidden must be given",
    "plan --hidden": "--hidden has no value",
    "plan --hidden x": "--hidden: 'x' must be positive integers",
    "plan --hidden 4,8": "--hidden: '4,8' must be one positive integer",
    "plan --hiden 8 --hidden 8": "--hiden is no option; did you mean --hidden?",
    "plan --hidden 8 --xyzzy": "--xyzzy is no option; choose from --help, --hidden",
    "plan --hidd 8": "--hidden must be given",
    "plan --hidden 8 16": "16 stands alone on the command line",
    "plan --hidden 8 --dtype int8": "--dtype is int8; choose from bfloat16, float16, float32, float64",
    "plan --hidden 8 --device gpu": "--device gpu is no device",
    "plan --hidden 8 --device meta": "--device meta is no device",
    "plan --hidden 8 --device cuda:99": "--device cuda:99 is not there",
    "plan --hidden 8 --device cpu --backend persistent": "backend='persistent' cannot run",
    "build": "--sizes must be given",
    "build --sizes 0": "--sizes: '0' must be positive integers",
    "build --sizes 64 --arch sm_1": "arch is 'sm_1'",
    "build --sizes 64 --dtype int8": "dtype is 'int8'",
    "build --sizes 64 --workers 0": "--workers: '0' must be",
    "benchmark --repeats 1": "--repeats is 1",
    "benchmark --nonlinearity gelu": "--nonlinearity is gelu; choose from relu, tanh",
}


@pytest.mark.parametrize("given", MISTAKES)
def test_a_mistake_is_one_sentence(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = command.main(given.split())
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert code in (1, 2)
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    assert MISTAKES[given] in line
    assert "usage:" not in line
