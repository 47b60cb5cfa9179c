"""How soon the commands answer, in processor time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRINT = ("-m", "experiments", "fit", "--config", "experiments/configs/demo.yaml", "--print_config")


def seconds(*arguments: str) -> float:
    begin = os.times()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
    end = os.times()
    return end.children_user - begin.children_user + end.children_system - begin.children_system


@pytest.mark.alone
@pytest.mark.slow
def test_the_help_answers_at_once_and_the_config_in_little_more_than_lightnings_import() -> None:
    assert seconds("-m", "experiments", "--help") < 1
    assert seconds(*PRINT) < 1.5 * seconds("-c", "import pytorch_lightning.cli, torchaudio, omegaconf")


@pytest.mark.idle
@pytest.mark.slow
def test_the_config_is_printed_within_six_seconds() -> None:
    assert seconds(*PRINT) < 6
