"""Sweep files: W&B's forms, the order of a grid, draws, the command's macros; and one sentence for each mistake."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sweeps.parameters import DISTRIBUTIONS, Parameter, read_parameters
from sweeps.sweep_file import read_sweep

COMMAND = [
    "${env}", "${interpreter}", "-m", "experiments", "fit", "--config", "card.yaml", "--config", "${args_json}",
]  # fmt: skip


def sweep_file(folder: Path, **content: Any) -> Path:
    whole = {"method": "grid", "command": COMMAND, "parameters": {"model.num_layers": {"values": [1, 4]}}, **content}
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in whole.items() if value is not ...}))
    return path


def test_a_grid_goes_through_the_keys_by_name_the_last_fastest(tmp_path: Path) -> None:
    parameters = {
        "seed_everything": {"values": [0, 1]},
        "model": {"parameters": {"num_layers": {"values": [8, 4]}, "dropout": {"value": 0.1}}},
        "trainer.max_epochs": {"min": 1, "max": 2},
    }
    points = read_sweep(sweep_file(tmp_path, parameters=parameters)).points()
    assert len(points) == 8
    assert points[0] == {"model.dropout": 0.1, "model.num_layers": 8, "seed_everything": 0, "trainer.max_epochs": 1}
    assert [point["trainer.max_epochs"] for point in points[:4]] == [1, 2, 1, 2]
    assert len(read_sweep(sweep_file(tmp_path, parameters=parameters, run_cap=3)).points()) == 3


def test_the_command_passes_on_what_the_agent_would(tmp_path: Path) -> None:
    point = {"model.num_layers": 4, "model.skip_span": None, "data.flag": True}
    assert read_sweep(sweep_file(tmp_path)).arguments(point) == [
        "--config",
        "card.yaml",
        "--config",
        '{"model.num_layers": 4, "model.skip_span": null, "data.flag": true}',
    ]
    flags = read_sweep(sweep_file(tmp_path, command=[*COMMAND[:5], "${args}"])).arguments(point)
    assert flags == ["--model.num_layers=4", "--model.skip_span=None", "--data.flag=True"]
    words = read_sweep(sweep_file(tmp_path, command=[*COMMAND[:5], "${args_no_equals}"])).arguments({"a.b": 1})
    assert words == ["--a.b", "1"]


def test_draws_are_a_function_of_the_seed_and_never_repeat(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, method="random", run_cap=4, parameters={"a": {"values": [1, 2, 3, 4]}})
    sweep = read_sweep(path)
    assert sweep.points(0) == sweep.points(0)
    assert sorted(point["a"] for point in sweep.points(5)) == [1, 2, 3, 4]
    many = read_sweep(sweep_file(tmp_path, method="random", run_cap=9, parameters={"x": {"min": 0.0, "max": 1.0}}))
    assert many.points(0) != many.points(1)


@given(st.integers(0, 10_000), st.sampled_from(sorted(set(DISTRIBUTIONS) - {"constant"})))
def test_a_draw_lies_where_its_distribution_does(seed: int, distribution: str) -> None:
    forms: dict[str, dict[str, Any]] = {
        "categorical": {"values": [2, 3]},
        "categorical_w_probabilities": {"values": [2, 3], "probabilities": [0.2, 0.8]},
        "int_uniform": {"min": 2, "max": 5},
    }
    bounded = {"min": 0.5, "max": 8.0} if "uniform" in distribution else {"mu": 0.0, "sigma": 1.0}
    step = {"q": 0.5} if distribution.startswith("q_") else {}
    form = forms.get(distribution, {**bounded, **step})
    [parameter] = read_parameters({"key": {"distribution": distribution, **form}})
    value = parameter.draw(Random(seed))
    if "values" in form:
        assert value in form["values"]
    if step:
        assert value / 0.5 == round(value / 0.5)
    if "min" in form and distribution != "log_uniform":
        assert form["min"] <= value <= form["max"]
    if distribution == "log_uniform":  # its bounds are exponents
        assert 1.6 < value < 2981
    if distribution == "log_normal":
        assert value > 0


def test_a_quantised_range_is_a_grid() -> None:
    assert Parameter("a", "q_uniform", {"min": 0.1, "max": 0.5, "q": 0.2}).grid() == pytest.approx([0.1, 0.3, 0.5])
    with pytest.raises(ValueError, match="a is uniform, which a grid cannot list"):
        Parameter("a", "uniform", {"min": 0.0, "max": 1.0}).grid()


WRONG = [
    ({"method": "gird"}, "method is 'gird'; it is one of grid, random, bayes"),
    ({"method": ...}, "method is None"),
    ({"paramters": {}}, "paramters is no key of a sweep file"),
    ({"parameters": {}}, "must be a mapping of at least one key"),
    ({"parameters": {"a": 3}}, r"a is 3; write a: \{value: 3\}"),
    ({"parameters": {"a": {"values": []}}}, r"a\.values is \[\]; give a list"),
    ({"parameters": {"a": {"vales": [1]}}}, "has vales; it needs max, min"),
    ({"parameters": {"a": {"min": 3, "max": 1}}}, "runs from 3 to 1"),
    ({"parameters": {"a": {"min": "1e-5", "max": 1.0}}}, "not a number; YAML reads 1e-5 as a word, write 1.0e-5"),
    ({"parameters": {"a": {"distribution": "log_uniform_values", "min": 0, "max": 1}}}, "starts above 0"),
    ({"parameters": {"a": {"distribution": "cauchy"}}}, "distribution 'cauchy'; it is one of"),
    ({"parameters": {"a": {"values": [1, 2], "probabilities": [0.5, 0.6]}}}, "sum to 1"),
    ({"parameters": {"a": {"parameters": {"b": {"value": 1}}, "value": 2}}}, "give one"),
    ({"run_cap": 0}, "run_cap is 0; give a whole number"),
    ({"method": "bayes"}, "needs a metric"),
    ({"metric": {"name": "val/wer", "goal": "least"}}, "it is minimize or maximize"),
    ({"metric": ["val/wer"]}, "metric is a mapping of name and goal"),
    ({"command": ...}, "command is None; give a list"),
    ({"command": ["python", "train.py", "${args}"]}, "does not run `-m experiments fit`"),
    ({"command": COMMAND[:-1]}, "passes no parameters on"),
    ({"command": [*COMMAND[:-2], "--config=${args_json}"]}, "a macro is an item of its own"),
    ({"command": [*COMMAND[:5], "${args_no_boolean_flags}"]}, "turns true into a flag without a value"),
]


@pytest.mark.parametrize(("content", "sentence"), WRONG)
def test_a_mistake_is_one_sentence_that_names_the_file(tmp_path: Path, content: dict[str, Any], sentence: str) -> None:
    path = sweep_file(tmp_path, **content)
    with pytest.raises(ValueError, match=sentence) as caught:
        read_sweep(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_files_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no file; name a sweep file"):
        read_sweep(tmp_path / "absent.yaml")
    (tmp_path / "bad.yaml").write_text("method: [grid")
    with pytest.raises(ValueError, match="is not YAML"):
        read_sweep(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- grid")
    with pytest.raises(ValueError, match="holds no mapping"):
        read_sweep(tmp_path / "list.yaml")


def test_random_needs_an_end_and_bayes_has_no_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a random sweep has no end; give run_cap"):
        read_sweep(sweep_file(tmp_path, method="random")).points()
    with pytest.raises(ValueError, match="follow from its results"):
        read_sweep(sweep_file(tmp_path, method="bayes", metric={"name": "val/wer"})).points()
