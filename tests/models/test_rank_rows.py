"""What ranks keep for themselves comes back to each, or to the first when there are more or fewer of them."""

import pytest
import torch

from models import rank_rows
from models.rank_rows import gather_rows, own_row


class Ranks:
    """A process group as `rank_rows` sees it."""

    def __init__(self, rank: int, of: int) -> None:
        self.is_initialized = lambda: True
        self.get_rank = lambda: rank
        self.get_world_size = lambda: of


def test_alone_what_was_kept_comes_back_exactly() -> None:
    values = torch.rand(3, 2, dtype=torch.float64)
    assert torch.equal(own_row(gather_rows(values)), values)
    assert len(own_row(gather_rows(torch.zeros(0, 2)))) == 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_has_its_own_row_or_the_first_has_all(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[1.0, 2.0], [10.0, 20.0]]
    shares = []
    for rank in range(ranks):
        monkeypatch.setattr(rank_rows, "dist", Ranks(rank, ranks))
        shares.append(own_row(rows))
    assert torch.stack(shares).sum(0).tolist() == [11.0, 22.0]
    assert [share.tolist() for share in shares[:2]] == (rows if ranks == 2 else [[11.0, 22.0], [0.0, 0.0]])
