"""`fit --help` answers at once, and everything it names is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments.arguments import CONFIGS
from experiments.cli import EXIT_USAGE, LIGHTNING, STUDIES, main
from experiments.many_runs.resolving import parser_of
from experiments.settings.known import Settings
from experiments.training_help import FIT, OTHERS, question_of, training_help

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", [[], *([name] for name in LIGHTNING | STUDIES)], ids=" ".join)
def test_help_loads_nothing_heavy_and_has_an_example(command: list[str]) -> None:
    program = (
        "import sys, resource; from experiments.cli import main\n"
        f"try: code = main([*{command!r}, '--help'])\n"
        "except SystemExit as ended: code = ended.code\n"
        "heavy = {'torch', 'pytorch_lightning', 'wandb', 'jsonargparse'} & set(sys.modules)\n"
        "assert code == 0 and not heavy, (code, heavy)\n"
        "usage = resource.getrusage(resource.RUSAGE_SELF)\n"
        "assert usage.ru_utime + usage.ru_stime < 1.0, usage\n"
    )
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert re.search(r"examples?:\s+python -m experiments ", said.stdout), said.stdout


def test_every_option_is_one() -> None:
    for command in LIGHTNING:
        settings = Settings(parser_of(command, [f"--config={CONFIGS / 'demo.yaml'}"]))
        for option in FIT if command == "fit" else OTHERS:
            key = option.split()[0].removeprefix("--")
            assert key == "config" or settings.takes(key), f"{command} {option}"


def test_it_is_short_and_shows_every_card() -> None:
    text = training_help("fit")
    assert len(text.splitlines()) < 70
    cards = [path for path in CONFIGS.glob("*.yaml") if path.name != "base.yaml"]
    assert cards
    for card in cards:
        assert f"experiments/configs/{card.name}" in text
        assert question_of(card).endswith("?")
    assert "base.yaml" not in text
    for example in re.findall(r"--config (experiments/\S+)", text):
        assert isinstance(yaml.safe_load((ROOT / example).read_text()), dict)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fitt"], "fitt is not a command; did you mean fit?"),
        (["xyz"], "xyz is not a command; choose from fit, validate"),
        (["plan", "--num-layer", "8"], "--num-layer is no option; did you mean --num-layers?"),
        (["plan", "--num-layers", "x"], "--num-layers: 'x' is not a whole number of 1 or more"),
        (["plan", "--num-layers"], "--num-layers has no value; give one; say python -m experiments plan --help"),
        (["plan", "--precision", "fp8"], "--precision is fp8; choose from bf16, fp32"),
        (["plan", "88"], "88 stands alone on the command line; write options as --NAME VALUE"),
        (["transcribe"], "CKPT, AUDIO must be given"),
        (["transcribe", "a.ckpt", "a.wav", "--batch-size", "x"], "--batch-size is x; give a whole number"),
        (["depth"], "--config, --output must be given"),
        (["fit"], "fit needs a card; give --config experiments/configs/fsdd.yaml (fit --help lists all)"),
        (["fit", "--model.num_layers=3"], "fit needs a card"),
        (["test", "--ckpt_path=a.ckpt"], "test needs a card; give --config runs/NAME/config.yaml"),
    ],
)
def test_a_mistake_with_a_study_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(arguments) == EXIT_USAGE
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
