"""Command lines of `fit` resolved side by side: the same configs, in the same order, and the same first mistake."""

import json

import pytest

from experiments.many_runs import resolving

# Lightning 2.6 still calls jsonargparse's add_instantiator.
pytestmark = pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
CARD = ["--config", "experiments/configs/fsdd.yaml", "--config"]


def points(*depths: object) -> dict[str, list[str]]:
    return {f"point {n}": [*CARD, json.dumps({"model.num_layers": one})] for n, one in enumerate(depths)}


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_any_number_of_cores_resolves_the_same_in_the_same_order(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "usable_cores", lambda: cores)
    monkeypatch.setattr(resolving, "FEWEST_POINTS", 2)
    found = resolving.resolve(points(*range(1, 8)))
    assert list(found) == [f"point {n}" for n in range(7)]
    assert [one["model"]["num_layers"] for one in found.values()] == list(range(1, 8))
    assert all(one["data"]["train_manifest"] for one in found.values())


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(("wrong", "named"), [((0, 6), 0), ((3, 6), 3), ((6,), 6)])
def test_the_first_mistake_is_told_whoever_found_it(
    cores: int, wrong: tuple[int, ...], named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "usable_cores", lambda: cores)
    monkeypatch.setattr(resolving, "FEWEST_POINTS", 2)
    depths = [f"deep{n}" if n in wrong else 1 for n in range(7)]
    with pytest.raises(ValueError, match=f"^point {named}: .*deep{named}"):
        resolving.resolve(points(*depths))


def test_no_points_are_no_configs() -> None:
    assert resolving.resolve({}) == {}


@pytest.mark.parametrize("cores", [1, 2, 5, 64])
@pytest.mark.parametrize("number", [1, 7, 16, 200])
def test_shares_are_all_points_in_order(number: int, cores: int) -> None:
    named: resolving.Points = [(str(n), []) for n in range(number)]
    shares = resolving._shares(named, cores)
    assert [point for share in shares for point in share] == named
    assert len(shares) <= cores
    assert len(shares) == 1 or min(map(len, shares)) >= resolving.FEWEST_POINTS
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
