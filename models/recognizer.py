"""The one LightningModule: what a step, an epoch and a checkpoint are.

The loss of an optimiser step is the sum of its utterances' CTC losses over their number, `step_utterances`, whoever
computed them. A micro-batch hands Lightning

    loss = sum_{its utterances} ctc * world_size * accumulate_grad_batches / step_utterances

because Lightning divides by accumulate_grad_batches and DDP by world_size; one batch of 8 = 4 + 4 accumulated = 2 ranks
x 4. `step_utterances` comes from a plan that left out what cannot be aligned wherever that was known (`batch_loss`).
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from pytorch_lightning.plugins import HalfPrecision
from torch import Tensor

import prnn_ext
from data.batch import Batch
from data.vocabulary import Vocabulary
from models.batch_loss import BatchLoss, batch_loss
from models.decoding import Hypothesis, greedy
from models.error_rate import ErrorCounts, ErrorRate
from models.features import FeatureOptions
from models.front_end import FrontEndOptions
from models.gradient_norm import GradientNorm, steps_on_the_device
from models.loss_sums import LossSums
from models.memory_policy import MemoryPolicy
from models.network import AcousticNetwork
from models.recipe import Recipe
from models.recurrent_layer import Activation, Normalization, RecurrentLayer, SkipPlacement
from models.row_convolution import RowConvolutionPlacement
from models.spec_augment import SpecAugmentOptions
from models.stack import Initialization, StackOptions

GROUPS = {
    "features": FeatureOptions,
    "front_end": FrontEndOptions,
    "spec_augment": SpecAugmentOptions,
    "recipe": Recipe,
}


class UnalignableShareError(ValueError):
    """More of the training audio than allowed had too few frames for its transcripts."""


class Recognizer(pl.LightningModule):
    """Characters from speech.

    Args:
        num_layers: depth L of the recurrent stack.
        hidden_size: width H.
        module_layers: layers of a module, after which its row convolution stands.
        skip_span: layers a residual skip spans; null for none.
        skip_placement: where it lands (`models/stack.py`).
        row_convolution: one per module, exactly ten, or none.
        future_frames: that all row convolutions together see.
        activation: f of the recurrence.
        normalization: batch norm of each rank's own frames, of all ranks' frames, or none.
        initialization: how the stack starts (`models/stack.py`).
        dropout: of a layer's units.
        backend: of the recurrence; `auto` says in `plan()` what it chose.
        memory_policy: what the stack keeps for its backward pass (`models/memory_policy.py`).
        vocabulary: file of characters, one a line; null for blank, space, apostrophe, a-z.
        characters: the vocabulary itself, as checkpoints carry it; goes before `vocabulary`.
        max_unalignable_share: of an epoch's utterances, above which training stops.
        features, front_end, spec_augment, recipe: see those files.
    """

    def __init__(
        self,
        num_layers: int = 8,
        hidden_size: int = 1152,
        module_layers: int = 4,
        skip_span: int | None = 4,
        skip_placement: SkipPlacement = "after_activation",
        row_convolution: RowConvolutionPlacement = "per_module",
        future_frames: int = 40,
        activation: Activation = "clipped_relu",
        normalization: Normalization = "batch",
        initialization: Initialization = "gaussian",
        dropout: float = 0.0,
        backend: str = "auto",
        memory_policy: MemoryPolicy = "save",
        vocabulary: str | None = None,
        characters: str | None = None,
        max_unalignable_share: float = 0.05,
        features: FeatureOptions = FeatureOptions(),  # noqa: B008 - frozen
        front_end: FrontEndOptions = FrontEndOptions(),  # noqa: B008
        spec_augment: SpecAugmentOptions = SpecAugmentOptions(),  # noqa: B008
        recipe: Recipe = Recipe(),  # noqa: B008
    ) -> None:
        super().__init__()
        self.vocabulary = Vocabulary(characters) if characters is not None else Vocabulary.load(vocabulary)
        self.recipe = recipe
        self.max_unalignable_share = max_unalignable_share
        stack = StackOptions(
            num_layers=num_layers,
            hidden_size=hidden_size,
            module_layers=module_layers,
            skip_span=skip_span,
            skip_placement=skip_placement,
            row_convolution=row_convolution,
            future_frames=future_frames,
            activation=activation,
            normalization=normalization,
            initialization=initialization,
            dropout=dropout,
            backend=backend,
            memory_policy=memory_policy,
        )
        self.network = AcousticNetwork(stack, len(self.vocabulary), features, front_end, spec_augment)
        groups: dict[str, Any] = {
            "features": features,
            "front_end": front_end,
            "spec_augment": spec_augment,
            "recipe": recipe,
        }
        # Plain types only: checkpoints load with weights_only=True, and without the vocabulary's file.
        self.save_hyperparameters(
            {
                **dataclasses.asdict(stack),
                **{name: dataclasses.asdict(group) for name, group in groups.items()},
                "characters": self.vocabulary.characters,
                "max_unalignable_share": max_unalignable_share,
            }
        )
        self.gradient_norm = GradientNorm(recipe.clip_norm, recipe.max_nonfinite_steps)
        self.error_counts: dict[str, ErrorCounts] = {}
        self.epoch_loss: float | None = None
        self._latest_loss: Tensor | None = None
        self._training = LossSums()
        self._evaluation: dict[int, tuple[LossSums, ErrorRate]] = {}

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: str | Path, map_location: str = "cpu") -> "Recognizer":  # type: ignore[override]
        """The recogniser of a checkpoint, in evaluation mode; needs no other file.

        Raises ValueError when the file is not a checkpoint of this class.
        """
        checkpoint = torch.load(checkpoint_path, map_location=map_location, weights_only=True)
        if not isinstance(checkpoint, dict) or not {"hyper_parameters", "state_dict"} <= set(checkpoint):
            raise ValueError(f"{checkpoint_path}: this is not a recogniser's checkpoint; give one that `fit` wrote.")
        arguments = dict(checkpoint["hyper_parameters"])
        arguments |= {name: group(**arguments[name]) for name, group in GROUPS.items()}
        recognizer = cls(**arguments).to(map_location)
        recognizer.load_state_dict(checkpoint["state_dict"])
        return recognizer.eval()

    # -- what others ask of the model

    @property
    def num_parameters(self) -> int:
        """Trainable numbers."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    @property
    def dropped_steps(self) -> int:
        """Optimiser steps dropped so far for a gradient that was not finite."""
        return self.gradient_norm.dropped

    def output_lengths(self, audio_lengths: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Samples -> frames at the loss."""
        return self.network.output_lengths(audio_lengths)

    def plan(self, batch_size: int = 4, frames: int = 1) -> prnn_ext.Plan:
        """Which backend the recurrence takes on this device, in the weights' precision, and why not the others."""
        layer = self.network.stack.layers[0]
        assert isinstance(layer, RecurrentLayer)
        dtype = layer.weight_hh.dtype
        if torch.is_autocast_enabled(self.device.type):
            dtype = torch.get_autocast_dtype(self.device.type)
        x = torch.empty(frames, batch_size, layer.weight_hh.shape[0], device=self.device, dtype=dtype)
        lengths = torch.empty(batch_size, device=self.device, dtype=torch.int32)
        U = layer.weight_hh.to(dtype)
        return prnn_ext.plan(x, U, None, lengths, activation=layer.activation, backend=layer.backend)

    def forward(self, audio: Float[Tensor, "B N"], audio_lengths: Int[Tensor, " B"]) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B,T,V] and lengths in frames. Raises ValueError for a batch of no utterance."""
        if not len(audio):
            raise ValueError(f"audio {tuple(audio.shape)} is a batch of no utterance; give at least one")
        return self.network(audio, audio_lengths)

    @torch.no_grad()
    def transcribe(self, audio: Float[Tensor, "B N"], audio_lengths: Int[Tensor, " B"]) -> list[Hypothesis]:
        """Hypotheses with times in seconds, in the order given. The module must be in evaluation mode."""
        if not len(audio):
            return []
        seconds = (audio_lengths / self.network.features.options.sample_rate).tolist()
        log_probs, lengths = self.network(audio.to(self.device), audio_lengths.to(self.device))
        return self._decode(log_probs, lengths, seconds)

    def losses(self, batch: Batch) -> BatchLoss:
        """CTC of one micro-batch."""
        return batch_loss(self.network, batch)

    # -- training

    def setup(self, stage: str) -> None:
        """Check that the data speak the model's language, and keep audio whole under `bf16-true`, where Lightning would
        round it to 8 bits before features are made. Raises ValueError when vocabulary or sample rate differ.
        """
        datamodule = getattr(self.trainer, "datamodule", None)
        own = {"vocabulary": self.vocabulary, "sample_rate": self.network.features.options.sample_rate}
        for name, value in own.items():
            if getattr(datamodule, name, value) != value:
                where = "features.sample_rate" if name == "sample_rate" else name
                raise ValueError(
                    f"model.{where} and data.{name} differ; give both the same, or test and transcribe with the data's "
                    "settings of the training."
                )
        precision = self.trainer.precision_plugin
        if isinstance(precision, HalfPrecision):
            precision.convert_input = lambda data: data  # type: ignore[method-assign]

    def on_fit_start(self) -> None:
        """Estimate the corpus's feature statistics once, from the training data, before anything is validated."""
        features = self.network.features
        if features.options.normalization != "corpus" or bool(features.estimated):
            return
        datamodule = getattr(self.trainer, "datamodule", None)
        if datamodule is None:
            raise ValueError(
                "features.normalization 'corpus' needs the corpus's mean before training; fit with a data module, call "
                "network.features.estimate first, or set normalization to 'utterance'."
            )
        loader = datamodule.train_dataloader()
        batches = (batch for batch, _ in zip(loader, range(features.options.statistics_batches), strict=False))
        features.estimate((b.audio.to(self.device), b.audio_lengths.to(self.device)) for b in batches)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The micro-batch's share of the step's mean loss, scaled as the module docstring says."""
        result = self.losses(batch)
        self._training.add(result.total, result.usable, batch.audio_lengths)
        mean = result.total.detach() / result.usable.sum().clamp(min=1)
        self.log("train/loss", mean, prog_bar=True, logger=False, batch_size=max(1, len(batch)))
        self._latest_loss = mean
        shares = self.trainer.world_size * self.trainer.accumulate_grad_batches
        return result.total * (shares / max(1, batch.step_utterances))

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """The recipe's norm, not the trainer's; drops a step that is not finite. Raises ValueError when both are
        set."""
        if gradient_clip_val is not None:
            raise ValueError(
                f"trainer.gradient_clip_val {gradient_clip_val} was given; set model.recipe.clip_norm instead."
            )
        if steps_on_the_device(optimizer):
            self.gradient_norm.leave_to(optimizer, self.parameters())
        else:
            self.gradient_norm.apply(self.parameters())

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Tell the loggers the loss of the step's last micro-batch, where Lightning logs."""
        step, every = self.trainer.global_step, self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if self._latest_loss is not None and every and (step + 1) % every == 0:
            self._tell_loggers(step, {"train/loss": float(self._latest_loss)})

    def on_train_epoch_end(self) -> None:
        """Log the epoch's loss over all ranks; stop when too much could not be aligned."""
        loss = self._training.pool(self.device)
        hours = loss.skipped_samples / self.network.features.options.sample_rate / 3600
        told = {
            "train/loss": loss.mean,
            "train/skipped_utterances": float(loss.skipped),
            "train/skipped_hours": hours,
        }
        padding = getattr(getattr(self.trainer, "datamodule", None), "padding_share", None)
        if padding is not None:
            told["data/padding_share"] = padding
        for name, value in told.items():
            self.log(name, value, logger=False, sync_dist=True)
        self._tell_loggers(self.trainer.global_step - 1, told)
        self.epoch_loss = loss.mean
        if loss.skipped > self.max_unalignable_share * (loss.utterances + loss.skipped):
            raise UnalignableShareError(
                f"{loss.skipped} of {loss.utterances + loss.skipped} training utterances had too few frames for their "
                f"transcripts, more than the share {self.max_unalignable_share} allowed; raise features.pad_seconds, "
                "lower the front-end's time stride, or check that the transcripts belong to the audio."
            )

    def _tell_loggers(self, step: int, values: dict[str, float]) -> None:
        """Lightning tells them after the hooks in which checkpoints are saved; what a checkpoint stands for must have
        been told before."""
        for logger in self.trainer.loggers:
            logger.log_metrics(values | {"epoch": self.trainer.current_epoch}, step=step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Besides the weights, how far the epoch's sums have come; every rank must call it."""
        checkpoint["training"] = {
            "sums": self._training.state(),
            "epoch_loss": self.epoch_loss,
            "gradient_norm": self.gradient_norm.state(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up where the checkpoint was; where it is only tested there is nothing to take up."""
        if self.trainer.state.fn == "fit" and (training := checkpoint.get("training")) is not None:
            self._training.load_state(training["sums"])
            self.epoch_loss = training["epoch_loss"]
            self.gradient_norm.load_state(training["gradient_norm"])

    def configure_optimizers(self) -> Any:
        """The recipe's optimiser and schedule. Raises ValueError when a schedule by step has no end."""
        return self.recipe.optimization(self, self.trainer.estimated_stepping_batches)

    # -- evaluation

    def on_validation_epoch_start(self) -> None:
        self._evaluation.clear()

    def on_test_epoch_start(self) -> None:
        self._evaluation.clear()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, dataloader_idx)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> list[tuple[str, Hypothesis]]:
        """(utterance id, hypothesis) in the batch's order."""
        return list(zip(batch.utterance_ids, self.transcribe(batch.audio, batch.audio_lengths), strict=True))

    def _evaluate(self, batch: Batch, data_set: int) -> None:
        sums, rate = self._evaluation.setdefault(data_set, (LossSums(), ErrorRate()))
        if not len(batch):
            return
        result = self.losses(batch)
        sums.add(result.total, result.usable, batch.audio_lengths)
        references = zip(batch.tokens.tolist(), batch.token_lengths.tolist(), strict=True)
        hypotheses = self._decode(result.log_probs, result.lengths)
        for name, hypothesis, (tokens, length) in zip(batch.utterance_ids, hypotheses, references, strict=True):
            rate.update(name, hypothesis.text, self.vocabulary.decode(tokens[:length]))

    def _log_evaluation(self, stage: str) -> None:
        for data_set, (sums, rate) in sorted(self._evaluation.items()):
            counts, loss = rate.compute(), sums.pool(self.device)
            suffix = f"/{data_set}" if data_set else ""
            self.error_counts[stage + suffix] = counts
            self.log(f"{stage}/loss{suffix}", loss.mean, sync_dist=True)
            self.log(f"{stage}/wer{suffix}", counts.wer, sync_dist=True, prog_bar=not data_set)
            self.log(f"{stage}/cer{suffix}", counts.cer, sync_dist=True)

    def _decode(self, log_probs: Tensor, lengths: Tensor, seconds: list[float] | None = None) -> list[Hypothesis]:
        network = self.network
        lead = network.features.pad / network.features.options.sample_rate
        return greedy(log_probs, lengths, self.vocabulary.units, network.seconds_per_frame, lead, seconds)
