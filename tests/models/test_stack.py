"""The stack: depth, skips, modules, and what an unchanged copy of its equations says."""

import pytest
import torch

from models.stack import RecurrentStack, StackOptions, skip_spans

LENGTHS = torch.tensor([9, 4, 0])


def stack(input_size: int = 6, **options: object) -> RecurrentStack:
    torch.manual_seed(0)
    return RecurrentStack(input_size, StackOptions(**{"num_layers": 4, "hidden_size": 6, **options}))


def ragged(size: int = 6, frames: int = 9) -> torch.Tensor:
    mask = torch.arange(frames) < LENGTHS[:, None]
    return torch.randn(3, frames, size, generator=torch.Generator().manual_seed(1)) * mask[:, :, None]


def test_eighty_eight_layers_of_the_paper_have_its_parameters() -> None:
    with torch.device("meta"):
        deep = RecurrentStack(32 * 41, StackOptions(num_layers=88, hidden_size=1152, row_convolution="ten"))
    millions = sum(p.numel() for p in deep.parameters()) / 1e6
    assert millions == pytest.approx(234.0, abs=0.5)
    assert all(p.is_meta for p in deep.parameters())
    assert len(deep.layers) == 88
    # The front-end is 1,312 wide: the first module has no skip, the other 21 have.
    assert deep.spans == {4 * i: 4 * (i - 1) for i in range(2, 23)}


@pytest.mark.parametrize(
    ("num_layers", "skip_span", "same_width", "expected"),
    [
        (8, 4, True, {4: 0, 8: 4}),
        (8, 4, False, {8: 4}),
        (10, 4, False, {8: 4, 10: 8}),
        (3, 4, True, {3: 0}),
        (3, 4, False, {}),
        (3, 1, True, {1: 0, 2: 1, 3: 2}),
        (3, 1, False, {2: 1, 3: 2}),
        (7, 3, True, {3: 0, 6: 3, 7: 6}),
        (8, None, True, {}),
    ],
)
def test_span_table(num_layers: int, skip_span: int | None, same_width: bool, expected: dict[int, int]) -> None:
    assert skip_spans(num_layers, skip_span, same_width) == expected


@pytest.mark.parametrize("module_layers", [1, 3, 4])
@pytest.mark.parametrize("placement", ["after_activation", "after_batch_norm", "before_batch_norm"])
@pytest.mark.parametrize("normalization", ["batch", "none"])
def test_equations_of_skips_and_row_convolutions(placement: str, module_layers: int, normalization: str) -> None:
    """Five layers, span 2, the widths equal: layer by layer, with batch norm written out."""
    options = {"skip_placement": placement, "module_layers": module_layers, "normalization": normalization}
    model = stack(num_layers=5, skip_span=2, future_frames=5, initialization="orthogonal", **options)
    for rows in model.row_convolutions.values():
        torch.nn.init.normal_(rows[0].weight, std=0.3)
    x = ragged()
    y, frames = model(x, LENGTHS)

    x = x.transpose(0, 1)
    valid = (torch.arange(9)[:, None] < LENGTHS)[:, :, None]

    def norm(z: torch.Tensor) -> torch.Tensor:
        if normalization == "none":
            return z
        seen = z[valid.squeeze(-1)]
        return (z - seen.mean(0)) / (seen.var(0, correction=0) + 1e-5).sqrt()

    def layer(i: int, x: torch.Tensor, skip: torch.Tensor | None) -> torch.Tensor:
        z = x @ model.layers[i - 1].weight_ih.T
        z = z + skip if skip is not None and placement == "before_batch_norm" else z
        gain = 1 if model.layers[i - 1].norm is None else model.layers[i - 1].norm.weight
        z = norm(z) * gain
        z = z + skip if skip is not None and placement == "after_batch_norm" else z
        h, outputs = torch.zeros(3, 6), []
        for t in range(9):
            h = (z[t] + h @ model.layers[i - 1].weight_hh.T).clamp(0, 20) * valid[t]
            outputs.append(h)
        h = torch.stack(outputs)
        if i % module_layers == 0:
            w = model.row_convolutions[str(i)][0].weight
            h = sum(w[j] * torch.nn.functional.pad(h, (0, 0, 0, 0, 0, len(w)))[j : j + 9] for j in range(len(w)))
        return h + skip if skip is not None and placement == "after_activation" else h

    a = layer(2, layer(1, x, None), x)
    b = layer(4, layer(3, a, None), a)
    torch.testing.assert_close(y, layer(5, b, b), rtol=1e-4, atol=1e-5)
    assert torch.equal(frames.mask > 0, valid)


def test_a_short_last_module_has_no_row_convolution() -> None:
    assert list(stack(num_layers=6).row_convolutions) == ["4"]
    assert list(stack(num_layers=8).row_convolutions) == ["4", "8"]
    assert len(stack(num_layers=3).row_convolutions) == 0


def test_dropout_hides_a_unit_for_a_whole_utterance_and_only_in_training() -> None:
    model = stack(num_layers=1, skip_span=None, dropout=0.5, hidden_size=64)
    x = torch.ones(3, 9, 6)
    x[2] = 0
    full = model.eval()(x, LENGTHS)[0][:4, :2]
    again = model(x, LENGTHS)[0][:4, :2]
    assert torch.equal(full, again)
    model.train()
    model.layers[0].norm.momentum = 0.0
    y = model(torch.randn(3, 9, 6), torch.tensor([9, 9, 9]))[0]
    silent = (y == 0).all(0)
    assert 0.3 < silent.float().mean() < 0.8
    assert not torch.equal(silent[0], silent[1])


@pytest.mark.parametrize("normalization", ["batch", "none"])
@pytest.mark.parametrize("initialization", ["gaussian", "orthogonal", "identity"])
@pytest.mark.parametrize("num_layers", [8, 88])
def test_deep_stacks_start_with_finite_signals_and_gradients(
    num_layers: int, initialization: str, normalization: str
) -> None:
    torch.manual_seed(0)
    model = stack(num_layers=num_layers, hidden_size=32, initialization=initialization, normalization=normalization)
    x = torch.randn(4, 20, 6, requires_grad=True)
    y, _ = model(x, torch.full((4,), 20))
    assert 0.05 < y.std() < 20
    (y * torch.randn_like(y)).sum().backward()
    norms = [layer.weight_hh.grad.norm().item() for layer in model.layers]
    assert max(norms) / min(norms) < 1e3, "every layer hears of the loss"


def test_wrong_options_are_one_sentence() -> None:
    for wrong in ({"num_layers": 0}, {"skip_span": 0}, {"module_layers": 0}, {"dropout": 1.0}, {"future_frames": -1}):
        ((name, value),) = wrong.items()
        with pytest.raises(ValueError, match=rf"^{name} is {value}; give a (whole )?number .*\.$"):
            stack(**wrong)
