"""The numbers a setting may take: the limits that its type does not say.

A test holds this table against the command line: every numeric setting of model, data, synth and divergence is in it.
Whether several settings fit together (a batch that divides, a window longer than its stride) is said where they meet.
"""

import math
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limit:
    """From `least` to `most`; `above`: not `least` itself, `below`: not `most` itself. `unit` is put into words."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False
    unit: str = ""

    def allows(self, value: float) -> bool:
        """Whether a number is within; NaN is not."""
        low = value > self.least if self.above else value >= self.least
        high = value < self.most if self.below else value <= self.most
        return low and high

    def words(self) -> str:
        """` of 1 or more`, ` above 0`, ` from 0 to 1`: what follows "a number"; empty where there is no limit."""
        unit = f" {self.unit}" if self.unit else ""
        if math.isinf(self.least):
            return ""
        if math.isinf(self.most):
            return f" above {self.least:g}{unit}" if self.above else f" of {self.least:g}{unit} or more"
        return f" from {self.least:g} to {'below ' if self.below else ''}{self.most:.10g}{unit}"


COUNT = Limit(1)
NOT_NEGATIVE = Limit(0)
POSITIVE = Limit(0, above=True)
SHARE = Limit(0, 1)
BELOW_ONE = Limit(0, 1, below=True)
ANY = Limit()
SEED = Limit(0, 2**32 - 1)
HZ = Limit(1000, unit="Hz")

LIMITS: dict[str, Limit] = {
    "seed_everything": SEED,
    "threads": COUNT,
    "checkpoint_minutes": NOT_NEGATIVE,
    "trainer.num_nodes": COUNT,
    "trainer.max_epochs": Limit(-1),
    "trainer.min_epochs": NOT_NEGATIVE,
    "trainer.max_steps": Limit(-1),
    "trainer.min_steps": NOT_NEGATIVE,
    "trainer.limit_train_batches": NOT_NEGATIVE,
    "trainer.limit_val_batches": NOT_NEGATIVE,
    "trainer.limit_test_batches": NOT_NEGATIVE,
    "trainer.limit_predict_batches": NOT_NEGATIVE,
    "trainer.val_check_interval": POSITIVE,
    "trainer.check_val_every_n_epoch": COUNT,
    "trainer.num_sanity_val_steps": Limit(-1),
    "trainer.log_every_n_steps": NOT_NEGATIVE,
    "trainer.reload_dataloaders_every_n_epochs": NOT_NEGATIVE,
    "data.sample_rate": HZ,
    "data.channel": NOT_NEGATIVE,
    "data.global_batch_size": COUNT,
    "data.per_device_batch_size": COUNT,
    "data.seconds_per_batch": POSITIVE,
    "data.micro_batches_per_step": COUNT,
    "data.evaluation_batch_size": COUNT,
    "data.speeds": Limit(0.5, 2),
    "data.noise_probability": SHARE,
    "data.noise_snr_db": ANY,
    "data.room_probability": SHARE,
    "data.gain_db": ANY,
    "data.max_duration": POSITIVE,
    "data.skipped_share_limit": SHARE,
    "data.audio_error_limit": NOT_NEGATIVE,
    "data.cache_audio_seconds": NOT_NEGATIVE,
    "data.num_workers": NOT_NEGATIVE,
    "data.seed": SEED,
    "model.num_layers": COUNT,
    "model.hidden_size": COUNT,
    "model.module_layers": COUNT,
    "model.skip_span": COUNT,
    "model.future_frames": NOT_NEGATIVE,
    "model.dropout": BELOW_ONE,
    "model.max_unalignable_share": SHARE,
    "model.features.sample_rate": HZ,
    "model.features.window_seconds": POSITIVE,
    "model.features.stride_seconds": POSITIVE,
    "model.features.mel_bins": COUNT,
    "model.features.pad_seconds": NOT_NEGATIVE,
    "model.features.statistics_batches": COUNT,
    "model.front_end.channels": COUNT,
    "model.front_end.first_kernel": COUNT,
    "model.front_end.first_stride": COUNT,
    "model.front_end.second_kernel": COUNT,
    "model.front_end.second_stride": COUNT,
    "model.spec_augment.frequency_masks": NOT_NEGATIVE,
    "model.spec_augment.frequency_width": NOT_NEGATIVE,
    "model.spec_augment.time_masks": NOT_NEGATIVE,
    "model.spec_augment.time_width": NOT_NEGATIVE,
    "model.spec_augment.time_share": SHARE,
    "model.spec_augment.seed": SEED,
    "model.recipe.learning_rate": POSITIVE,
    "model.recipe.momentum": BELOW_ONE,
    "model.recipe.betas": BELOW_ONE,
    "model.recipe.weight_decay": NOT_NEGATIVE,
    "model.recipe.warmup_share": SHARE,
    "model.recipe.final_share": SHARE,
    "model.recipe.anneal": POSITIVE,
    "model.recipe.clip_norm": POSITIVE,
    "model.recipe.max_nonfinite_steps": NOT_NEGATIVE,
    "synth.hours": POSITIVE,
    "synth.speakers": COUNT,
    "synth.seed": SEED,
    "divergence.window": COUNT,
    "divergence.factor": POSITIVE,
}


def outside(key: str, value: Any) -> bool:
    """Whether a number, or one of a list of them, is past the limits of its key; other values never are."""
    limit = LIMITS.get(key)
    values = value if isinstance(value, list | tuple) else [value]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return limit is not None and not all(limit.allows(number) for number in numbers)


# Texts of a form: what they must match, and the form in words.
FORMS: dict[str, tuple[str, str]] = {
    "name": (r"[\w.+=-]+", "a word for the run's folder, of letters, digits and - _ . + ="),
    "output": (r".+", "a folder, or null for runs/NAME-sSEED-HASH"),
    "resume": (r".+", "auto, never or a checkpoint"),
    "model.backend": ("auto|persistent|cudnn|reference", "auto, persistent, cudnn or reference"),
    "trainer.accelerator": ("auto|cpu|gpu|cuda|mps|tpu", "auto, cpu or gpu"),
    "trainer.devices": (r"auto|-1|[1-9]\d*|\d+(,\d+)+|\d+,", "auto, how many, at least 1, or their numbers as 0,1"),
    "trainer.max_time": (r"\d+:\d\d:\d\d:\d\d", "days:hours:minutes:seconds, as 00:00:15:00, or null"),
    "trainer.precision": (r".+", "32-true, bf16-mixed, bf16-true, 16-mixed, 16-true or 64-true"),
    "trainer.strategy": (r"auto|(ddp|fsdp|deepspeed|single|xla|model_parallel)\w*", "auto, ddp or a class_path"),
}


def malformed(key: str, value: Any) -> bool:
    """Whether a text, or a number as text, has not the form of its key."""
    simple = isinstance(value, str | int) and not isinstance(value, bool)
    return simple and re.fullmatch(FORMS[key][0], str(value)) is None
