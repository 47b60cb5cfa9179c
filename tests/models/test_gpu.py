"""The recogniser on a GPU says what it says on a CPU; to be run where there is one (marker `gpu`)."""

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from models.batch_loss import BatchLoss
from models.ctc import ctc_losses
from models.gradient_norm import steps_on_the_device
from models.recipe import Recipe
from models.recognizer import Recognizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="runs on a machine with a CUDA device (tests/gpu/run.sh)"),
]
Make = Callable[..., Any]
UTTERANCES = [(9000, [1, 2, 3]), (16_000, [2, 2]), (4000, []), (400, [1] * 60)]


def step(model: Recognizer, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    result = model.train().losses(batch)
    result.total.backward()
    return result.total.detach().cpu(), torch.cat([p.grad.flatten().cpu().float() for p in model.parameters()])


@pytest.mark.parametrize("normalization", ["batch", "none"])
def test_loss_and_gradients_agree_with_the_cpu(recognizer: Make, batch: Make, normalization: str) -> None:
    arguments = {"normalization": normalization, "num_layers": 4, "hidden_size": 64}
    on_cpu = step(recognizer(**arguments), batch(*UTTERANCES))
    on_gpu = step(recognizer(**arguments).cuda(), batch(*UTTERANCES).to("cuda"))
    torch.testing.assert_close(on_gpu[0], on_cpu[0], rtol=1e-3, atol=1e-3)
    assert torch.nn.functional.cosine_similarity(on_gpu[1], on_cpu[1], dim=0) > 0.999


@pytest.mark.parametrize("low", ["autocast", "bf16"])
def test_bfloat16_stays_close(recognizer: Make, batch: Make, low: str) -> None:
    arguments = {"num_layers": 4, "hidden_size": 64}
    exact, _ = step(recognizer(**arguments), batch(*UTTERANCES))
    model = recognizer(**arguments).cuda()
    model = model.to(torch.bfloat16) if low == "bf16" else model
    with torch.autocast("cuda", torch.bfloat16, enabled=low == "autocast"):
        loss, gradient = step(model, batch(*UTTERANCES).to("cuda"))
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0.5)
    assert torch.isfinite(gradient).all()


def test_transcripts_are_the_same(recognizer: Make, batch: Make) -> None:
    model, given = recognizer().eval(), batch(*UTTERANCES[:3])
    texts = [h.text for h in model.transcribe(given.audio, given.audio_lengths)]
    assert [h.text for h in model.cuda().transcribe(given.audio, given.audio_lengths)] == texts


@contextmanager
def waits() -> Iterator[list[str]]:
    """Where the host waits for the device, as PyTorch notices: a Python stack for each. In a backward pass all are told
    at its end, in the line that called it."""
    found: list[str] = []

    def note(message: Any, *_: Any) -> None:
        if "synchroniz" in str(message):
            found.append("".join(traceback.format_stack(limit=8)[:-1]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # switching it on says that it is a prototype
        torch.cuda.set_sync_debug_mode("warn")
        warnings.simplefilter("always")
        warnings.showwarning = note
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_step_waits_for_the_device_only_in_ctc_and_for_the_norm(recognizer: Make, batch: Make) -> None:
    """PyTorch's CTC waits several times (models/ctc.py), counted here by itself; the gradient's norm is read once.
    Nothing else may wait."""
    model = recognizer(recipe=Recipe(learning_rate=1e-3)).cuda().train()
    optimizer = model.recipe.optimizer_for(model)
    given = batch(*UTTERANCES).to("cuda")
    found: dict[str, list[str]] = {}

    def one() -> BatchLoss:
        with waits() as found["forward"]:
            result = model.losses(given)
        with waits() as found["backward"]:
            result.total.backward()
        with waits() as found["norm"]:
            model.gradient_norm.apply(model.parameters())
        with waits() as found["optimiser"]:
            optimizer.step()
            optimizer.zero_grad()
        return result

    one()  # what is made at the first step is made
    result = one()
    log_probs = result.log_probs.detach().requires_grad_()
    frames, tokens = (torch.where(result.usable, n, 0) for n in (result.lengths, given.token_lengths))
    with waits() as ctc_forward:
        total = ctc_losses(log_probs, frames, given.tokens, tokens).sum()
    with waits() as ctc_backward:
        total.backward()
    assert ctc_forward, "CTC did not wait, or waits are not seen: what models/ctc.py says of it is to be changed"
    allowed = {"forward": len(ctc_forward), "backward": len(ctc_backward), "norm": 1, "optimiser": 0}
    assert all(len(stacks) <= allowed[stage] for stage, stacks in found.items()), "\n".join(
        f"--- {stage}, wait {i} of {len(stacks)}, {allowed[stage]} allowed\n{stack}"
        for stage, stacks in found.items()
        for i, stack in enumerate(stacks, start=1)
    )


def test_the_norm_left_to_the_optimiser_moves_as_on_the_host(recognizer: Make) -> None:
    """A good step, a long gradient, one that is not finite; and the host waits for none of them."""
    found = []
    for on_device in (False, True):
        torch.manual_seed(0)
        model = recognizer(recipe=Recipe(learning_rate=1e-3, clip_norm=5.0)).cuda().train()
        optimizer = model.recipe.optimizer_for(model)
        assert steps_on_the_device(optimizer)
        for scale in (1e-3, 1.0, float("nan"), 1e-3):
            torch.manual_seed(1)
            for p in model.parameters():
                p.grad = scale * torch.randn_like(p)
            if on_device:
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
                try:
                    model.gradient_norm.leave_to(optimizer, model.parameters())
                    optimizer.step()
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            else:
                model.gradient_norm.apply(model.parameters())
                optimizer.step()
        assert model.gradient_norm.state() == {"dropped": 1, "dropped_in_a_row": 0}
        found.append([p.detach() for p in model.parameters()])
    for own, host in zip(*found, strict=True):
        torch.testing.assert_close(own, host, rtol=1e-4, atol=1e-6)
