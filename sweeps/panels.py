"""A sweep's view on W&B's own pages: the figures of `sweeps report`, for those who watch online.

Made of the sweep file alone: what it varies gives the axis of the scatter plots, the columns of the run table and of
the parallel coordinates. It is a *saved view* of the project (W&B calls a page of panels a workspace), so nobody's own
view changes. Values are those that a run mirrors (`experiments/run/wandb_log.py`): logged metrics, and the result's
numbers in its summary. The library builds the whole specification offline; only `save` needs an account.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.extras import missing_package
from experiments.report.figures import Axis
from experiments.report.table import CONFIG_COLUMNS
from experiments.run.result import write_atomically
from sweeps.columns import SEED, axis_and_group, column_names, leaves, varied_keys
from sweeps.sweep_file import Sweep

# What W&B's pages show at once: more than any study of ours has runs.
MOST_RUNS = 100
# Lightning's logger writes the optimiser step under this name; W&B's own Step counts calls of log.
STEP = "trainer/global_step"
SUMMARY = {
    "test/wer": "Test WER",
    "val/wer": "Dev WER",
    "perf/peak_memory_gib": "Peak memory (GiB)",
    "perf/audio_seconds_per_second": "Audio seconds a second",
}
CURVES = {"train/loss": "Training loss", "val/loss": "Dev loss", "val/wer": "Dev WER"}


@dataclass(frozen=True)
class Varied:
    """What a sweep varies: `{column: dotted key}`, and the axis of its figures with the axis' own key."""

    columns: Mapping[str, str]
    axis: Axis
    key: str


def varied(sweep: Sweep) -> Varied:
    """Columns and axis of a sweep, as its page has them; where only seeds vary the axis is depth."""
    if sweep.method == "grid":
        points: Sequence[Mapping[str, Any]] = sweep.points()
        columns = column_names(varied_keys(points))
    else:
        constant = {one.key: one.form.get("value") for one in sweep.parameters if one.distribution == "constant"}
        columns = column_names([one.key for one in sweep.parameters if one.key not in constant])
        # A distribution has no list of values; an axis only needs to know that they are numbers.
        points = [{one.key: one.form.get("values", [0.0])[0] for one in sweep.parameters if one.key not in constant}]
    flat = [leaves(point) for point in points]
    rows = [{column: point.get(key) for column, key in columns.items()} for point in flat]
    axis, _ = axis_and_group(rows, list(columns))
    return Varied(columns, axis, columns.get(axis.column) or CONFIG_COLUMNS.get(axis.column, axis.column))


def view(sweep: Sweep, entity: str, project: str, sweep_id: str | None = None) -> Any:
    """The saved view (`wandb_workspaces.workspaces.Workspace`), of all runs of the project or of one sweep.

    Raises ValueError where wandb-workspaces is not installed.
    """
    try:
        import wandb_workspaces.expr as expr
        import wandb_workspaces.reports.v2 as panels
        import wandb_workspaces.workspaces as workspaces
    except ModuleNotFoundError as error:
        raise ValueError(missing_package(error)) from error
    told = varied(sweep)
    x, seed = panels.Config(told.key), panels.Config(SEED)
    scatters = [
        panels.ScatterPlot(title=f"{title} by {told.axis.noun}", x=x, y=panels.SummaryMetric(metric))
        for metric, title in SUMMARY.items()
    ]
    scatters.append(
        panels.ScatterPlot(
            title="Test WER by peak memory (GiB)",
            x=panels.SummaryMetric("perf/peak_memory_gib"),
            y=panels.SummaryMetric("test/wer"),
        )
    )
    curves = [
        panels.LinePlot(title=title, x=STEP, y=[metric], log_y=metric.endswith("loss"), max_runs_to_show=MOST_RUNS)
        for metric, title in CURVES.items()
    ]
    lines = [panels.Config(key) for key in told.columns.values()] + [seed]
    lines += [panels.SummaryMetric(metric) for metric in SUMMARY]
    together = [
        panels.ParallelCoordinatesPlot(
            title="Parameters and results",
            columns=[panels.ParallelCoordinatesPlotColumn(metric=one) for one in lines],
        ),
        panels.ParameterImportancePlot(with_respect_to=sweep.metric or "val/wer"),
    ]
    keys = [f"config:{_stored(key)}" for key in (*told.columns.values(), SEED)]
    table = ["run:displayName", "run:state", *keys, *(f"summary:{metric}" for metric in SUMMARY), "summary:reason"]
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=sweep.name,
        sections=[
            workspaces.Section(name=f"By {told.axis.noun}", panels=scatters, is_open=True),
            workspaces.Section(name="Training curves", panels=curves, is_open=True),
            workspaces.Section(name="All that varies", panels=together, is_open=True),
        ],
        settings=workspaces.WorkspaceSettings(x_axis=STEP, max_runs=MOST_RUNS),
        runset_settings=workspaces.RunsetSettings(
            filters="" if sweep_id is None else expr.And(expr.Metric("Sweep") == sweep_id),
            order=[expr.Ordering(expr.Config(_stored(told.key)), ascending=True)],
            pinned_columns=table,
        ),
    )


def specification(made: Any) -> dict[str, Any]:
    """The view as W&B stores it: entity, project, name and the JSON that its pages draw."""
    return dict(json.loads(made._to_model().model_dump_json(by_alias=True, exclude_none=True)))


def write_specification(path: Path, made: Any) -> None:
    """The specification as a file, for a machine without an account."""
    write_atomically(path, json.dumps(specification(made), indent=1) + "\n")


def save(made: Any) -> str:
    """Store the view in the project and return its address.

    Raises ValueError where there is no account, or the server does not answer or refuses.
    """
    from sweeps.wandb_account import account

    with account(f"to save a view in {made.entity or 'your'}/{made.project}") as api:
        made.entity = made.entity or api.default_entity
        made.save()
        return str(made.url)


def _stored(key: str) -> str:
    """A config key where W&B keeps it: `model.num_layers` is the leaf `num_layers` of the value `model`."""
    first, _, rest = key.partition(".")
    return f"{first}.value.{rest}" if rest else f"{first}.value"
