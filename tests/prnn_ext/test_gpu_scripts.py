"""What the scripts of tests/gpu make of figures, on figures made up here; the scripts themselves need a GPU."""

import tarfile

import pytest
import torch

from tests.gpu import l2_probe, rivals, stages, timed_launch, trace


def test_a_trace_tells_each_part_of_a_step_though_the_clock_wraps():
    blocks, warps, steps = 3, 3, 200
    notes = torch.zeros(blocks, warps, steps, 4, dtype=torch.long)
    start = torch.arange(steps) * 1000 + 2**32 - 90_000
    for warp in range(2):
        joints = (start + 400, start + 700 + 20 * warp, start + 800 + 20 * warp, torch.full_like(start, 1 + warp))
        notes[:, warp] = torch.stack(joints, -1)
    notes[:, 2, :, 0], notes[:, 2, :, 1] = start + 850, start + 950
    notes %= 2**32
    notes = notes.where(notes < 2**31, notes - 2**32)  # as int32 reads them
    told = trace.told(notes, 2)
    assert [told[name] for name in ("trip", "product", "wait", "cell", "step")] == [770, 100, 30, 100, 1000]
    assert told["polls_of_all_1_to_5"] == [0.5, 0.5, 0, 0, 0]
    assert told["polls_of_the_last_1_to_5"] == [0, 1, 0, 0, 0]
    assert told["words_came_after_own_sums_10_50_90"] == [900, 900, 900]


def test_two_sides_of_a_cache_are_found_and_one_is_not_made_two():
    generator = torch.Generator().manual_seed(0)
    noise = 8 * torch.randn(132, 4096, generator=generator, dtype=torch.float64)
    here, there = torch.arange(132) % 2 == 0, torch.arange(4096) // 32 % 2 == 0
    found_here, found_there, share = l2_probe.sides(260 + 200.0 * (here[:, None] != there) + noise)
    assert share > 0.9
    assert torch.equal(found_here, here) or torch.equal(found_here, ~here)
    assert set(l2_probe.runs_of(found_there)) == {32}
    assert l2_probe.sides(260 + noise)[2] < 0.1


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("layer", rivals.RIVALS, ids=str)
def test_rival_splits_are_the_planners_and_its_next_best(layer, backward):
    chosen, *others = rivals.best_splits(*layer, backward)
    assert chosen == timed_launch.plan(*layer, backward)
    assert len(others) == 3
    assert len({(s.rows, s.columns, s.product_warps, s.chunk_tiles) for s in (chosen, *others)}) == 4
    costs = [split.rounds * split.cycles for split in (chosen, *others)]
    assert costs == sorted(costs)


@pytest.mark.parametrize("stage", ["rivals", "sides"])
def test_what_a_stage_times_it_also_compiles_beforehand(stage, monkeypatch):
    """With BUILD every kernel is asked for, and each by the macros that the launch will look it up by."""
    wanted = []
    monkeypatch.setattr(timed_launch, "BUILD", True)
    monkeypatch.setattr(rivals, "BUILD", True)
    monkeypatch.setattr(timed_launch, "WANTED", wanted)
    getattr(rivals, stage)()
    built = {tuple(sorted(defines.items())) for _, _, defines in wanted}
    assert built
    monkeypatch.setattr(rivals, "BUILD", False)
    monkeypatch.setattr(rivals, "ROWS", [])
    launched = set()

    def launch(split, activation, reverse, x, *rest, hidden=None, extra=()):
        launched.add(tuple(sorted({**split.defines(activation), **dict(extra)}.items())))
        return x, x

    monkeypatch.setattr(rivals, "random_arguments", lambda *shape: (torch.zeros(1), torch.zeros(1)))
    monkeypatch.setattr(rivals, "plain_forward", lambda x, weight, dtype: x)
    monkeypatch.setattr(rivals, "checked", lambda run, *arguments: run(*arguments[:3]))
    monkeypatch.setattr(rivals, "microseconds", lambda run, *rest, **options: run() is None or 1.0)
    monkeypatch.setattr(rivals, "spilled_bytes", lambda split, extra: 0)
    monkeypatch.setattr(rivals.persistent, "launch", launch)
    monkeypatch.setattr(rivals.persistent, "check", lambda: None)
    monkeypatch.setenv("PRNN_PROBE", "")
    getattr(rivals, stage)()
    assert launched == built


@pytest.mark.parametrize("name", stages.STAGES)
def test_every_stage_runs_something_in_a_call_of_ten_minutes(name):
    stage = stages.STAGES[name]
    assert stage.commands
    assert 0 < stage.seconds <= 540
    for command in (*stage.commands, *stage.small):
        text = command.replace("{out}", "OUT").replace("{scratch}", "SCRATCH")
        assert "{" not in text, "a place left open"


def test_a_stage_that_fails_or_hangs_does_not_stop_the_next(tmp_path, monkeypatch, capsys):
    quick = {
        "broken": stages.Stage(20, ["echo was here; exit 3", "echo and here"]),
        "endless": stages.Stage(1, ["sleep 60"]),
        "good": stages.Stage(20, ["echo made > {out}/figures.json"]),
    }
    for stage in quick.values():
        stage.small.extend(stage.commands)
    monkeypatch.setattr(stages, "STAGES", quick)
    monkeypatch.setattr("sys.argv", ["stages.py", "--dry-run", *quick])
    monkeypatch.setenv("OUT", str(tmp_path))
    assert stages.main() == 1
    shown = capsys.readouterr().out
    for line in ("broken        [3, 0]", "endless       [124]", "good          [0]", "was here"):
        assert line in shown
    with tarfile.open(tmp_path / "stages.tgz") as archive:
        names = archive.getnames()
    assert {"stages/broken.log", "stages/endless.log", "stages/good/figures.json"} <= set(names)
