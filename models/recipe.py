"""How the parameters move: optimiser and schedule.

Two recipes, as arguments of one dataclass. The paper's: SGD with Nesterov momentum 0.99, a learning rate divided by 1.2
after each epoch, the gradient's norm rescaled to 400. The modern one: AdamW, linear warm-up and cosine decay by step,
the norm clipped at 1.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True)
class Recipe:
    """The modern recipe by default; the paper's is `optimizer: sgd`, `schedule: per_epoch`, `learning_rate: 1e-5 ..
    6e-4`, `clip_norm: 400`."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 1e-3
    """At its highest."""
    momentum: float = 0.99
    """Nesterov's, of sgd."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Of adamw."""
    weight_decay: float = 0.01
    """Of matrices and kernels; never of norms, biases and row convolutions."""
    schedule: Literal["cosine", "per_epoch", "constant"] = "cosine"
    warmup_share: float = 0.1
    """Of all steps, linear from 0; cosine and constant."""
    final_share: float = 0.01
    """Of the highest learning rate, at the end of the cosine."""
    anneal: float = 1.2
    """The learning rate is divided by it after each epoch; per_epoch."""
    clip_norm: float = 1.0
    """The gradient of the mean loss an utterance is rescaled to this norm when it is longer."""
    max_nonfinite_steps: int = 20
    """Steps in a row dropped for a non-finite gradient before training stops."""

    def optimizer_for(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over the module's parameters, weight decay on those of two axes and more that are not row
        convolutions."""
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        decayed = [p for name, p in parameters if p.ndim >= 2 and "row_convolutions" not in name]
        others = [p for name, p in parameters if p.ndim < 2 or "row_convolutions" in name]
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        if self.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=self.learning_rate, momentum=self.momentum, nesterov=self.momentum > 0)
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=self.betas, fused=True)

    def optimization(self, module: nn.Module, total_steps: float) -> dict[str, Any]:
        """Optimiser and schedule as Lightning takes them; `total_steps` of the optimiser in the whole training.

        Raises ValueError when a schedule by step has no end.
        """
        optimizer = self.optimizer_for(module)
        by_epoch = self.schedule == "per_epoch"
        if not by_epoch and not math.isfinite(total_steps):
            raise ValueError(
                f"recipe.schedule {self.schedule!r} needs an end; set trainer.max_epochs or trainer.max_steps."
            )
        factor = LambdaLR(
            optimizer, lambda n: self.factor(0, 1, n) if by_epoch else self.factor(n, int(total_steps), 0)
        )
        interval = "epoch" if by_epoch else "step"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": factor, "interval": interval}}

    def factor(self, step: int, total_steps: int, epoch: int) -> float:
        """What multiplies the learning rate at optimiser step `step` of `total_steps`, in epoch `epoch` (both from
        0)."""
        if self.schedule == "per_epoch":
            return self.anneal**-epoch
        warmup = self.warmup_share * total_steps
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (step - warmup) / max(1.0, total_steps - warmup))
        return self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * done))
