"""The study of batch statistics: two networks a seed, each with the statistics of training and with new ones."""

import json
from pathlib import Path

import pytest

from experiments.batch_statistics.command import EVALUATED, Row, sentence
from experiments.cli import main

CARD = Path(__file__).parents[2] / "experiments" / "configs" / "studies" / "batch_statistics.yaml"


def test_a_row_reads_as_a_sentence():
    row = Row(0, "local", "re-estimated", 10.0, 0.125, 11.0, 0.25, 600)
    assert sentence(row).startswith("seed 0, local statistics in training, re-estimated in evaluation: dev loss 10.00")
    assert sentence(row).endswith("WER 25.0 % of 600 words")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_card_trains_and_evaluates_both(synth_corpus, tmp_path, capsys):
    small = ["trainer.max_epochs=1", "trainer.limit_train_batches=2", "model.num_layers=1", "model.hidden_size=8"]
    manifests = {"train": "train", "val": "dev", "test": "test"}
    data = [f"data.{name}_manifest={synth_corpus / file}.jsonl" for name, file in manifests.items()]
    sets = [f"--set={given}" for given in (*small, *data, "wandb.mode=disabled")]
    card = tmp_path / "card.yaml"
    card.write_text(CARD.read_text().replace("include: [../data/synth_digits.yaml]\n", ""))
    options = ["--per-device-batch=2", "--ranks=2", "--seeds=0", "--reestimate-batch=4", "--reestimate-batches=2"]
    arguments = ["batch-statistics", f"--config={card}", *options, *sets, f"--output={tmp_path}"]
    assert main(arguments) == 0
    rows = json.loads((tmp_path / "batch_statistics.json").read_text())["rows"]
    assert [(row["trained"], row["evaluated"]) for row in rows] == [
        (trained, evaluated) for trained in ("local", "synchronised") for evaluated in EVALUATED
    ]
    assert rows[0]["test_loss"] != rows[1]["test_loss"]
    assert (tmp_path / "table.csv").read_text().count("\n") == 7
    assert "mean of 1: synchronised, re-estimated" in capsys.readouterr().out
