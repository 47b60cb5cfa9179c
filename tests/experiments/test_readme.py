"""README.md and docs/ are true where a machine can tell: what they name is there, and README's Python runs."""

import argparse
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import data.__main__
import sweeps.__main__
from experiments.cli import commands

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@cache
def names(module: str) -> set[str]:
    if module == "experiments":
        return set(commands())
    if module == "prnn_ext":
        said = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
        return set(re.findall(r"{([\w,]+)}", said.stdout)[0].split(","))
    parser = {"data": data.__main__, "sweeps": sweeps.__main__}[module]._parser()
    (found,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return set(found.choices)


@pytest.mark.parametrize("module", ["experiments", "data", "sweeps", "prnn_ext"])
def test_readme_names_every_command_and_no_other(module: str) -> None:
    said = [part.split("|") for part in re.findall(rf"^python -m {module} ([\w|-]+)", README, re.MULTILINE)]
    assert {name for part in said for name in part} == names(module)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    for module, name in re.findall(r"python -m (experiments|data|sweeps|prnn_ext) ([a-z][a-z-]+)", text):
        assert name in names(module), f"{page.name}: python -m {module} {name}"
    links = re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for link in links:
        assert (page.parent / link).exists(), f"{page.name}: {link}"
    named = re.findall(r"(?:experiments/configs|sweeps|tests|docs)/[\w/]+\.(?:yaml|py|md|json|sh)\b", text)
    for path in named:
        assert (ROOT / path).exists() or path.endswith("configs/mine.yaml"), f"{page.name}: {path}"


def test_readmes_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(code.replace("1152", "32"), {})  # the same at a smaller width
    assert "reference" in capsys.readouterr().out


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 110
