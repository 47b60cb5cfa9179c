"""The front-end: exact lengths, orientation of kernels, masked edges and statistics."""

import pytest
import torch

from models.front_end import FrontEnd, FrontEndOptions


def small(**options: object) -> FrontEnd:
    return FrontEnd(12, FrontEndOptions(**{"channels": 2, "first_kernel": (5, 3), "second_kernel": (3, 3), **options}))


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (2, 2), (3, 1), (3, 4)])
@pytest.mark.parametrize("width", [1, 3, 11])
def test_predicted_length_is_actual_length(strides: tuple[int, int], width: int) -> None:
    front_end = small(
        first_stride=(2, strides[0]), second_stride=(2, strides[1]), first_kernel=(3, width), second_kernel=(3, width)
    ).eval()
    assert front_end.time_stride == strides[0] * strides[1]
    for frames in range(1, 401):
        x, lengths = front_end(torch.zeros(1, frames, 12), torch.tensor([frames]))
        assert x.shape == (1, lengths.item(), front_end.output_size)
        assert torch.equal(lengths, front_end.output_lengths(torch.tensor([frames])))
    assert front_end.output_lengths(torch.tensor([0])).item() == 0


def test_the_papers_shapes() -> None:
    front_end = FrontEnd(161, FrontEndOptions())
    assert [tuple(c.weight.shape) for c in front_end.convolutions] == [(32, 1, 41, 11), (32, 32, 21, 11)]
    assert front_end.output_size == 32 * 41
    assert front_end.time_stride == 2


def test_kernels_are_frequency_by_time() -> None:
    # A kernel one bin high and three frames wide spreads an impulse over time and not over frequency.
    front_end = FrontEnd(
        9,
        FrontEndOptions(
            channels=1, first_kernel=(1, 3), first_stride=(1, 1), second_kernel=(1, 1), second_stride=(1, 1)
        ),
        normalization="none",
    )
    with torch.no_grad():
        for convolution in front_end.convolutions:
            convolution.weight.fill_(1.0)
            convolution.bias.zero_()
    impulse = torch.zeros(1, 8, 9)
    impulse[0, 4, 6] = 1.0
    y, _ = front_end(impulse, torch.tensor([8]))
    assert (y[0] != 0).nonzero().tolist() == [[3, 6], [4, 6], [5, 6]]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("normalization", ["batch", "none"])
@pytest.mark.parametrize("extra", [0, 7, 100])
def test_padding_never_speaks(training: bool, normalization: str, extra: int) -> None:
    def run(frames: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        torch.manual_seed(0)
        front_end = FrontEnd(12, FrontEndOptions(channels=2, first_kernel=(5, 3), second_kernel=(3, 5)), normalization)
        for norm in front_end.norms:
            torch.nn.init.normal_(norm.bias)
        front_end.train(training)
        x = torch.randn(2, 30, 12) * (torch.arange(30) < torch.tensor([[30], [11]]))[:, :, None]
        y, lengths = front_end(torch.nn.functional.pad(x, (0, 0, 0, frames)), torch.tensor([30, 11]))
        assert all((row[end:] == 0).all() for row, end in zip(y, lengths.tolist(), strict=True))
        (y[:, :15] * torch.randn(2, 15, y.shape[2])).sum().backward()
        gradients = [p.grad for p in front_end.parameters()]
        return y[0, : lengths[0]], y[1, : lengths[1]], [*front_end.buffers(), *gradients]

    for now, before in zip(run(extra), run(0), strict=True):
        torch.testing.assert_close(now, before, rtol=1e-4, atol=1e-5)


def test_an_utterance_is_the_same_alone_in_evaluation() -> None:
    front_end = small().eval()
    torch.nn.init.normal_(front_end.norms[0].bias)
    x = torch.randn(2, 30, 12)
    x[1, 11:] = 0
    together, _ = front_end(x, torch.tensor([30, 11]))
    alone, _ = front_end(x[1:, :11], torch.tensor([11]))
    torch.testing.assert_close(together[1, :6], alone[0])


def test_even_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match="kernels odd"):
        small(first_kernel=(4, 3))


@pytest.mark.parametrize("bins", [10, 22, 27])
def test_a_kernel_much_taller_than_the_image_is_refused(bins: int) -> None:
    with pytest.raises(ValueError, match=f"41 bins was given for an image of {bins}"):
        FrontEnd(bins, FrontEndOptions())


@pytest.mark.parametrize("normalization", ["batch", "none"])
def test_an_images_layout_changes_nothing_but_its_memory(normalization: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA in 16 bits the second convolution's image has its channels together."""
    torch.manual_seed(0)
    front_end = FrontEnd(20, FrontEndOptions(4, (5, 3), (2, 2), (3, 3)), normalization).double()
    features, lengths = torch.randn(3, 30, 20, dtype=torch.float64), torch.tensor([30, 11, 0])

    def run() -> list[torch.Tensor]:
        y, _ = front_end(features, lengths)
        return [y, *torch.autograd.grad(y.square().sum(), list(front_end.parameters()))]

    usual = run()
    monkeypatch.setattr("models.front_end._layout", lambda *_, **__: torch.channels_last)
    for own, other in zip(run(), usual, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)  # batch norm's sums are float32, in another order
