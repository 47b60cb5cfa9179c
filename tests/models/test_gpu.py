"""The recogniser on a GPU says what it says on a CPU; to be run where there is one (marker `gpu`)."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

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


def waits_in(call: Callable[[], object]) -> list[str]:
    """Where `call` waits for the device."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [f"{one.filename}:{one.lineno} {one.message}" for one in seen if "synchroniz" in str(one.message)]


def test_a_step_waits_for_the_device_only_in_ctc_and_for_the_norm(recognizer: Make, batch: Make) -> None:
    """PyTorch's CTC copies lengths to the host and offsets to the device, forward and backward; the gradient's norm is
    read once. Nothing else may wait."""
    model = recognizer(recipe=Recipe(learning_rate=1e-3)).cuda().train()
    optimizer = model.recipe.optimizer_for(model)
    given = batch(*UTTERANCES).to("cuda")

    def one() -> None:
        model.losses(given).total.backward()
        model.gradient_norm.apply(model.parameters())
        optimizer.step()
        optimizer.zero_grad()

    one()
    with torch.no_grad():
        _, usable, log_probs, lengths = model.losses(given)
    log_probs.requires_grad_()
    frames, tokens = (torch.where(usable, n, 0) for n in (lengths, given.token_lengths))
    ctc = waits_in(lambda: ctc_losses(log_probs, frames, given.tokens, tokens).sum().backward())
    found = waits_in(one)
    assert len(found) <= len(ctc) + 1, "\n".join(found)


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
