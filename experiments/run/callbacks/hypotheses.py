"""`predict` says what it heard: `utterance id<TAB>text` on stdout, each rank its share of the test set."""

from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer


class Hypotheses(Callback):
    """A line an utterance, as its batch is done."""

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """`outputs` are (utterance id, hypothesis) pairs."""
        for utterance_id, hypothesis in outputs:
            print(f"{utterance_id}\t{hypothesis.text}", flush=True)
