"""The published numbers that studies are shown beside: Diamos et al., "Persistent RNNs", ICML 2016, tables 1 to 3.

Dev WER in percent, 500 hours of English, beam search with a language model, one seed a row. The network's other layers
(two convolutions, ten row convolutions, one fully connected) are the same in every row.
"""

from dataclasses import dataclass

SOURCE = "Diamos et al., “Persistent RNNs: Stashing Recurrent Weights On-Chip”, ICML 2016"


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper: `x` is what it varies, each row one model."""

    key: str
    title: str
    x: str
    x_title: str
    rows: tuple[dict[str, float], ...]


def _rows(names: tuple[str, ...], *values: tuple[float, ...]) -> tuple[dict[str, float], ...]:
    return tuple(dict(zip(names, row, strict=True)) for row in values)


CONSTANT_WIDTH = PaperTable(
    "constant-width",
    "Constant width, 1,152 units",
    "num_layers",
    "recurrent layers",
    _rows(
        ("num_layers", "hidden_size", "parameters", "wer_percent"),
        (8, 1152, 22e6, 35.69),
        (24, 1152, 65e6, 31.32),
        (40, 1152, 107e6, 28.90),
        (56, 1152, 149e6, 28.12),
        (72, 1152, 192e6, 27.84),
        (88, 1152, 234e6, 27.23),
    ),
)
CONSTANT_PARAMETERS = PaperTable(
    "constant-parameters",
    "Constant parameters",
    "num_layers",
    "recurrent layers",
    _rows(
        ("num_layers", "hidden_size", "wer_percent"),
        (8, 1632, 33.61),
        (24, 928, 31.99),
        (40, 704, 31.64),
        (56, 608, 30.67),
        (72, 544, 33.35),
        (88, 480, 42.67),
    ),
)
# Span 0 is "no skip", which did not converge.
SKIP_SPAN = PaperTable(
    "skip-span",
    "Skip span, 48 layers of 1,152 units",
    "skip_span",
    "recurrent layers a skip spans (0: no skips)",
    _rows(
        ("skip_span", "wer_percent"),
        (0, 100.0),
        (1, 38.77),
        (2, 33.28),
        (3, 30.32),
        (4, 29.40),
        (5, 29.82),
        (6, 30.04),
        (7, 29.87),
        (8, 27.44),
    ),
)
TABLES = (CONSTANT_WIDTH, CONSTANT_PARAMETERS, SKIP_SPAN)
