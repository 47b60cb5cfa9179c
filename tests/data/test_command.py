"""`python -m data`: help with an example, errors as one line and exit code 2, a start without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from data.__main__ import main
from data.manifest import read_manifest
from data.vocabulary import Vocabulary

COMMANDS = ["synth", "validate", "import", "index", "vocabulary"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"python -m data {command} " in capsys.readouterr().out.split("Example:")[1]


def test_the_commands_start_without_torch() -> None:
    heavy = "{'torch', 'pytorch_lightning', 'torchaudio', 'altair'}"
    code = f"import sys, data.__main__, data.synth, data.validate; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_synth_writes_manifests_and_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c"
    command = ["synth", str(out), "--hours=0.002", "--speakers=2", "--splits=a=3,b=1", "--jobs=1", "--vocabulary=words"]
    assert main(command) == 0
    assert [Path(line).name for line in capsys.readouterr().out.split() if line.endswith(".jsonl")] == [
        "a.jsonl",
        "b.jsonl",
    ]
    assert read_manifest(out / "a.jsonl")


def test_errors_are_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["synth", str(tmp_path)]) == 2
    assert main(["synth", str(tmp_path / "c"), "--splits=train"]) == 2
    assert main(["vocabulary", str(tmp_path / "gone.jsonl"), "--output", str(tmp_path / "v.txt")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("error: ") and line.endswith(".") for line in lines)


def test_vocabulary_is_that_of_the_texts(tmp_path: Path, synth_corpus: Path) -> None:
    output = tmp_path / "v.txt"
    assert main(["vocabulary", str(synth_corpus / "train.jsonl"), "--output", str(output)]) == 0
    vocabulary = Vocabulary.load(output)
    assert set(vocabulary.characters) == set("zero one two three four five six seven eight nine")
