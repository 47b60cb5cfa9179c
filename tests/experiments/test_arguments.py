"""The command line before jsonargparse reads it."""

from pathlib import Path

import pytest

from experiments.arguments import plain


def test_files_come_before_options_in_their_own_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        Path(name).write_text("name: x\n")
    assert plain(["--model.num_layers=8", "--config", "a.yaml", "-c", "b.yaml", "--config=c.yaml", "--x", "1"]) == [
        "--config=a.yaml",
        "--config=b.yaml",
        "--config=c.yaml",
        "--model.num_layers=8",
        "--x",
        "1",
    ]


def test_python_none_is_null() -> None:
    assert plain(["--a=None", "--b", "None", "--c=Nonesuch"]) == ["--a=null", "--b", "null", "--c=Nonesuch"]


def test_reuse_commit_is_a_flag() -> None:
    assert plain(["--reuse-commit"]) == ["--reuse_commit=true"]


def test_inline_json_stands_for_itself() -> None:
    inline = '{"model.num_layers": 8}'
    assert plain(["--config", inline]) == [f"--config={inline}"]


def test_includes_come_first_and_are_relative_to_the_card(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    root, speech, card = tmp_path / "root.yaml", tmp_path / "data" / "speech.yaml", tmp_path / "card.yaml"
    root.write_text("a: 1\n")
    speech.write_text("include: [../root.yaml]\n")
    card.write_text("include: [data/speech.yaml]\n")
    read = [Path(argument.removeprefix("--config=")).resolve() for argument in plain(["--config", str(card)])]
    assert read == [root, speech, card]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("include: [missing.yaml]\n", "missing.yaml is no file"),
        ("include: [card.yaml]\n", "includes itself"),
        ("include: data.yaml\n", "give a list of files"),
        ("a: [1\n", "card.yaml:2 is not YAML"),
        ("include: [.]\n", "is no file"),
    ],
)
def test_a_mistake_in_a_card_names_the_card(tmp_path: Path, text: str, sentence: str) -> None:
    card = tmp_path / "card.yaml"
    card.write_text(text)
    with pytest.raises(ValueError, match=sentence) as caught:
        plain(["--config", str(card)])
    assert "card.yaml" in str(caught.value)
