"""Tries the longest batch before the first epoch: out-of-memory shows at once, with the numbers to change.

One forward and backward over the micro-batch with the most padded seconds, which also counts what is saved for
backward. Nothing of it stays: batch-norm statistics, random state and gradients are put back, and the optimiser is not
stepped.
"""

from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor

from experiments.memory.fit import advice, step_of
from experiments.memory.rows import available_bytes
from models.saved_tensors import saved_bytes

REMEDY = (
    "lower data.per_device_batch_size (or data.seconds_per_batch), which costs accumulation but no "
    "accuracy, set model.memory_policy to recompute, or lower data.max_duration, model.hidden_size or "
    "model.num_layers; `python -m experiments memory` predicts what fits"
)


class LongestBatch(Callback):
    """None before the trial.

    saved_bytes: unique storages kept for backward by the whole network, without parameters and buffers.
    saved_bytes_per_layer: the same within the recurrent stack, over its layers.
    saved_tensors_per_layer: that, in units of one [T,B,H] tensor of the stack's output.
    """

    def __init__(self) -> None:
        self.saved_bytes: int | None = None
        self.saved_bytes_per_layer: int | None = None
        self.saved_tensors_per_layer: float | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raises torch.OutOfMemoryError with the batch that did not fit and what to change."""
        batch = trainer.strategy.batch_to_device(trainer.datamodule.longest_batch())  # type: ignore[attr-defined]
        buffers = {name: buffer.clone() for name, buffer in pl_module.named_buffers()}
        cuda = [pl_module.device] if pl_module.device.type == "cuda" else []
        pl_module.train()
        try:
            with torch.random.fork_rng(devices=cuda), trainer.precision_plugin.forward_context():
                self._try(pl_module, batch)
        except torch.OutOfMemoryError as error:
            utterances, samples = batch.audio.shape
            step = step_of(pl_module, utterances, samples, str(trainer.precision))  # type: ignore[arg-type]
            total = available_bytes(pl_module.device)
            raise torch.OutOfMemoryError(
                f"the longest batch, {utterances} utterances of {samples} samples, does not fit on {pl_module.device}: "
                f"{REMEDY}. Predicted: {advice(step, total, str(pl_module.device))} ({_first_line(error)})"
            ) from error
        finally:
            pl_module.zero_grad(set_to_none=True)
            with torch.no_grad():
                for name, buffer in pl_module.named_buffers():
                    buffer.copy_(buffers[name])

    def _try(self, pl_module: Any, batch: Any) -> None:
        alive = [*pl_module.parameters(), *pl_module.buffers(), batch.audio]
        stack, seen = pl_module.network.stack, []
        hook = stack.register_forward_hook(lambda module, inputs, output: seen.append((inputs, output[0].detach())))
        losses: list[Tensor] = []
        self.saved_bytes = saved_bytes(lambda: losses.append(pl_module.losses(batch).total), alive)
        hook.remove()
        # DDP averages only after a forward of its own, so this backward reaches no other rank.
        losses.pop().backward()
        (x, lengths), h = seen.pop()
        x = x.detach().requires_grad_()
        in_stack = saved_bytes(lambda: stack(x, lengths), [*alive, x])
        self.saved_bytes_per_layer = in_stack // len(stack.layers)
        self.saved_tensors_per_layer = round(in_stack / len(stack.layers) / (h.numel() * h.element_size()), 3)


def out_of_memory(error: torch.OutOfMemoryError) -> str:
    """One sentence with what to do; torch goes on with its allocator's innards."""
    return str(error) if REMEDY in str(error) else f"memory ran out; {REMEDY} ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")
