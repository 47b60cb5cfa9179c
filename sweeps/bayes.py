"""Bayesian search without W&B: Optuna's TPE proposes points, the runner trains as many at a time as it has slots.

Every proposed point is written into sweep.json before it trains. A search that was cut short trains (or finds) those
first, tells their results, and goes on proposing; run_cap counts all of them. A run that failed or diverged counts, and
tells the search that its point has no value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sweeps.parameters import Parameter
from sweeps.sweep_file import Point, Sweep

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study

# What may be searched on: metrics of the dev set, as columns of the tidy table. The test set is not for choosing.
METRICS = {"val/wer": "val_wer", "val/loss": "val_loss"}


def search(
    sweep: Sweep,
    known: Sequence[Point],
    train: Callable[[list[Point]], list[float | None]],
    *,
    at_once: int,
    seed: int = 0,
) -> list[Point]:
    """Propose and train until `run_cap` points are known; returns all of them in their order.

    `known` are the points of an earlier start. `train` gets every point so far and returns their values, None for a run
    without one; it must remember the points before it trains them.
    Raises ValueError without run_cap, for a metric of the test set, and for a distribution that Optuna has no word for.
    """
    import optuna

    if sweep.run_cap is None:
        raise ValueError(f"{sweep.path}: a bayes sweep has no end; give run_cap, as in run_cap: 20.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {one.key: distribution(one) for one in sweep.parameters if one.distribution != "constant"}
    constants = {one.key: one.form["value"] for one in sweep.parameters if one.distribution == "constant"}
    sampler = optuna.samplers.TPESampler(seed=seed + len(known))
    direction = optuna.study.StudyDirection[sweep.goal.upper()]
    study = optuna.create_study(direction=direction, sampler=sampler)
    points = list(known)
    values = train(points) if points else []
    for point, value in zip(points, values, strict=True):
        _tell_known(study, sweep, space, point, value)
    while len(points) < sweep.run_cap:
        trials = [study.ask(space) for _ in range(min(at_once, sweep.run_cap - len(points)))]
        points += [constants | {key: _value(sweep, key, trial.params[key]) for key in space} for trial in trials]
        values = train(points)
        for trial, value in zip(trials, values[-len(trials) :], strict=True):
            state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
            study.tell(trial, value, state=state)
    return points


def metric_column(sweep: Sweep) -> str:
    """The column that the search goes by. Raises ValueError for a metric that is none of the dev set's."""
    if sweep.metric not in METRICS:
        raise ValueError(
            f"{sweep.path}: metric {sweep.metric!r} cannot be searched on; it is one of {', '.join(METRICS)}."
        )
    return METRICS[sweep.metric]


def distribution(parameter: Parameter) -> BaseDistribution:
    """Optuna's word for a parameter's distribution. Categories are indices, so that a value may be anything."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    form = parameter.form
    match parameter.distribution:
        case "categorical":
            return CategoricalDistribution(list(range(len(form["values"]))))
        case "int_uniform":
            return IntDistribution(form["min"], form["max"])
        case "uniform":
            return FloatDistribution(form["min"], form["max"])
        case "q_uniform":
            return FloatDistribution(form["min"], form["max"], step=form.get("q", 1.0))
        case "log_uniform":
            return FloatDistribution(math.exp(form["min"]), math.exp(form["max"]), log=True)
        case "log_uniform_values":
            return FloatDistribution(form["min"], form["max"], log=True)
    raise ValueError(
        f"{parameter.key} is {parameter.distribution}, which the local search does not know; give a range."
    )


def _value(sweep: Sweep, key: str, proposed: Any) -> Any:
    parameter = next(one for one in sweep.parameters if one.key == key)
    return parameter.form["values"][proposed] if parameter.distribution == "categorical" else proposed


def _tell_known(study: Study, sweep: Sweep, space: dict[str, Any], point: Point, value: float | None) -> None:
    import optuna

    params = {}
    for key in space:
        parameter = next(one for one in sweep.parameters if one.key == key)
        categorical = parameter.distribution == "categorical"
        params[key] = parameter.form["values"].index(point[key]) if categorical else point[key]
    state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
    study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value, state=state))
