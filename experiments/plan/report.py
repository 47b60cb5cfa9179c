"""A plan on the terminal, in plan.json and table.csv, and on its page: the decision, the region, the sources."""

import csv
import io
import json
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.plan.inputs import Inputs
from experiments.plan.planner import CLOSE, EFFECTS, Candidate, Decision, choose
from experiments.report.findings import count_words
from experiments.run import provenance
from experiments.run.result import write_atomically

QUESTION = (
    "A small per-GPU batch starves the GPU, a large one fills its memory, and too large a sum over all GPUs costs "
    "accuracy: what is left, and what is fastest?"
)


def plan_record(options: Any, inputs: Inputs, decision: Decision) -> dict[str, Any]:
    """All that plan.json holds."""
    problem = inputs.problem
    return {
        "experiment": "plan",
        "command": " ".join(["python -m experiments", *sys.argv[1:]]),
        "commit": provenance.commit(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "plan": candidate_row(decision.best),
        "binding": decision.binding,
        "binding_words": EFFECTS.get(decision.binding, "nothing: no single change would save more than 1 %"),
        "saved_without": decision.gains,
        "parameters": inputs.parameters,
        "memory_limit_bytes": problem.memory_limit,
        "batch_range": [problem.least_batch, problem.most_batch],
        "interconnect": problem.net.name,
        "model": {key: getattr(options, key) for key in ("num_layers", "hidden_size", "precision", "policy")},
        "corpus_hours": options.corpus_hours,
        "facts": [
            {"name": f.name, "value": f.value, "unit": f.unit, "kind": f.kind, "source": f.source}
            for f in inputs.facts
        ],
        "rows": [candidate_row(one) for one in decision.candidates],
        "best_by_gpus": [
            candidate_row(best)
            for gpus in sorted({one.gpus for one in decision.candidates})
            if (best := choose(one for one in decision.candidates if one.gpus == gpus)) is not None
        ],
    }  # fmt: skip


def candidate_row(one: Candidate) -> dict[str, Any]:
    """A candidate as one flat row."""
    return {
        "gpus": one.gpus,
        "batch_size": one.batch_size,
        "accumulation": one.accumulation,
        "global_batch_size": one.global_batch_size,
        "possible": not one.reasons,
        "reason": ", ".join(one.reasons),
        "hours": one.hours,
        "gpu_hours": one.hours * one.gpus,
        "step_ms": one.step.total * 1e3,
        "compute_ms": one.step.compute * 1e3,
        "exposed_ms": one.step.exposed * 1e3,
        "hidden_ms": one.step.hidden * 1e3,
        "optimizer_ms": one.step.optimizer * 1e3,
        "memory_bytes": one.memory_bytes,
    }


def print_plan(record: dict[str, Any]) -> None:
    """The decision in a few lines."""
    plan, model = record["plan"], record["model"]
    print(
        f"{model['num_layers']} layers of {model['hidden_size']} units ({count_words(record['parameters'])} "
        f"parameters), {record['corpus_hours']:,g} hours, over {record['interconnect']}:"
    )
    print(f"  GPUs                {plan['gpus']:,}")
    print(f"  per-GPU batch       {plan['batch_size']}")
    print(f"  accumulation        {plan['accumulation']}  (algorithmic batch {plan['global_batch_size']:,})")
    print(f"  step                {plan['step_ms']:,.1f} ms, {plan['exposed_ms']:.1f} ms of it all-reduce that shows")
    print(f"  hours to finish     {plan['hours']:,.2f}  ({plan['gpu_hours']:,.0f} GPU hours)")
    needed, allowed = plan["memory_bytes"] / 2**30, record["memory_limit_bytes"] / 2**30
    print(f"  memory              {needed:.1f} of {allowed:.1f} GiB a GPU")
    print(f"  what binds          {record['binding']}: {record['binding_words']}")
    for name, gain in record["saved_without"].items():
        print(f"    without {name:<13} {gain:6.1%} of the hours would be saved ({EFFECTS[name]})")
    kinds = Counter(fact["kind"] for fact in record["facts"])
    print(
        f"  stands on {kinds['measured']} measured, {kinds['predicted']} predicted and {kinds['assumption']} assumed "
        "numbers; each is named in plan.json and on the page"
    )


def write_results(output: Path, record: dict[str, Any]) -> None:
    """plan.json, table.csv and report.html."""
    from experiments.report.sections import write_document

    output.mkdir(parents=True, exist_ok=True)
    write_atomically(output / "plan.json", json.dumps(record, indent=1) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(record["rows"][0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(record["rows"])
    write_atomically(output / "table.csv", text.getvalue())
    write_document(output / "report.html", document(record))


def document(record: dict[str, Any]) -> Any:
    """The page."""
    from experiments.plan import figures
    from experiments.report.sections import Card, Document, Figure, Section, TextTable

    plan, model = record["plan"], record["model"]
    least, most = record["batch_range"]
    limit = record["memory_limit_bytes"] / 2**30
    cards = [
        Card("GPUs × per-GPU batch", f"{plan['gpus']:,} × {plan['batch_size']}",
             f"{plan['accumulation']} micro-batch{'es' if plan['accumulation'] > 1 else ''} a step, algorithmic batch "
             f"{plan['global_batch_size']:,}"),
        Card("Hours to finish", f"{plan['hours']:,.1f}", f"{plan['gpu_hours']:,.0f} GPU hours"),
        Card("One step", f"{plan['step_ms']:,.0f} ms", f"{plan['exposed_ms']:.1f} ms of it all-reduce that shows"),
        Card("Memory a GPU", f"{plan['memory_bytes'] / 2**30:.1f} GiB", f"of {limit:.0f} GiB that may be used"),
        Card("What binds", record["binding"], record["binding_words"]),
    ]  # fmt: skip
    region = Section(
        "What is possible",
        f"Every number of GPUs × per-GPU batch, at its best accumulation. Effect 2 forbids what needs more than "
        f"{limit:.0f} GiB; effect 3 forbids algorithmic batches outside {least:,} to {most:,}. Effect 1 shows in the "
        "hours: to the left of the knee a smaller batch makes a step no shorter.",
        figures=[
            Figure("region", "Hours to finish", "Framed: the plan. Dark grey: forbidden by memory (effect 2); light "
                "grey: by the algorithmic batch alone (effect 3).",
                   figures.region(record["rows"], plan)),
            Figure("hours", "Hours by number of GPUs", "The best possible per-GPU batch and accumulation at each; "
                   "dashed: perfect scaling.", figures.hours(record["best_by_gpus"])),
        ],
    )  # fmt: skip
    effects = TextTable(
        "Each effect, taken away",
        "Share of the hours that would be saved if that effect alone did not exist.",
        ("effect", "what it is", "saves"),
        [[name, EFFECTS[name], f"{gain:.1%}"] for name, gain in record["saved_without"].items()],
        best=next((i for i, name in enumerate(record["saved_without"]) if name == record["binding"]), None),
        words=frozenset({0, 1}),
    )
    best = TextTable(
        "The best at each number of GPUs",
        "",
        ("GPUs", "per-GPU batch", "accumulation", "algorithmic batch", "ms a step", "hours", "GPU hours", "GiB a GPU"),
        [
            [
                f"{row['gpus']:,}",
                str(row["batch_size"]),
                str(row["accumulation"]),
                f"{row['global_batch_size']:,}",
                f"{row['step_ms']:,.1f}",
                f"{row['hours']:,.2f}",
                f"{row['gpu_hours']:,.0f}",
                f"{row['memory_bytes'] / 2**30:.1f}",
            ]
            for row in record["best_by_gpus"]
        ],
        best=next((i for i, row in enumerate(record["best_by_gpus"]) if row == plan), None),
    )
    facts = TextTable(
        "Sources",
        "Measured: by a command of this project, with file, device and date. Predicted: computed from those, or from a "
        "traced step. Given: by you. Assumption: everything else.",
        ("number", "value", "kind", "source"),
        [[f["name"], fact_words(f), f["kind"], f["source"]] for f in record["facts"]],
        words=frozenset({0, 2, 3}),
    )
    return Document(
        title=f"A plan for {model['num_layers']} layers of {model['hidden_size']} units",
        question=QUESTION,
        status=f"{record['corpus_hours']:,g} hours of audio, {record['interconnect']}, {model['precision']}, "
        f"policy {model['policy']}; within {CLOSE:.0%} of the fewest hours the fewest GPUs are taken",
        sections=[region, Section("What binds", tables=[effects, best]), Section("What it stands on", tables=[facts])],
        cards=cards,
        facts={"Commit": record["commit"] or "not a git checkout", "Written": record["written"]},
        command=record["command"],
    )


def fact_words(fact: dict[str, Any]) -> str:
    """Value and unit."""
    value, unit = fact["value"], fact["unit"]
    number = f"{value:,.5g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
    return f"{number} {unit}".strip()
