"""The page as text: self-contained, safe, complete; the thinning of curves; the figures' data."""

import json
import re
from pathlib import Path

import pytest

from experiments.report import curves, figures
from experiments.report.page import Study, figure_specs, render, write_figures
from experiments.report.paper import CONSTANT_PARAMETERS, CONSTANT_WIDTH, SKIP_SPAN, TABLES
from tests.experiments.synthetic import study_rows, write_run

COMMAND = "python -m experiments depth --config=card.yaml --output=runs/demo"
DIVERGED = {"status": "diverged", "reason": "loss 99 above twice its first-100-step mean 40"}


def a_study(root: Path, **more: object) -> Study:
    return Study("WER by depth", "Is deeper better?", COMMAND, study_rows(root), root, **more)  # type: ignore[arg-type]


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """Three depths, two seeds, one of them diverged."""
    for depth in (1, 4, 8):
        for seed in (0, 1):
            write_run(tmp_path, depth, seed, **(DIVERGED if (depth, seed) == (8, 1) else {}))
    return tmp_path


def blocks(page: str) -> dict[str, str]:
    return dict(re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', page, re.DOTALL))


def test_the_page_asks_the_network_for_nothing_and_carries_vega_once(demo: Path) -> None:
    page = render(a_study(demo, paper=TABLES))
    without_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", without_scripts)
    assert "@import" not in without_scripts
    assert "url(" not in without_scripts
    assert page.count("<script>") == 2
    assert len(page.encode()) < 1_400_000


def test_every_run_and_what_failed_and_why_is_on_it(demo: Path) -> None:
    page = render(a_study(demo))
    for row in study_rows(demo):
        assert f'data-run="{row["folder"]}"' in page
    troubles = page[page.index('id="troubles"') : page.index('id="runs"')]
    assert troubles.count("<tr>") == 2
    assert DIVERGED["reason"] in troubles
    assert "6 runs: 5 finished, 1 diverged" in page
    assert COMMAND in page
    assert "git checkout 0123456789abcdef0123456789abcdef01234567" in page
    assert "CPU of the tests" in page


def test_two_seeds_are_points_and_three_have_intervals(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, 4, seed)
    assert "too few for an interval" in render(a_study(tmp_path))
    assert '"rule"' not in json.dumps(figure_specs(a_study(tmp_path))["wer"])
    write_run(tmp_path, 4, 2)
    assert "95 % intervals of the mean" in render(a_study(tmp_path))
    assert '"rule"' in json.dumps(figure_specs(a_study(tmp_path))["wer"])


def test_a_name_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    write_run(tmp_path, 4, 0, status="failed", reason="</script><script>alert(1)</script>")
    page = render(a_study(tmp_path))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    for text in blocks(page).values():
        json.loads(text)
        assert "<" not in text


def test_a_study_in_which_nothing_finished_still_has_its_page(tmp_path: Path) -> None:
    write_run(tmp_path, 4, 0, **DIVERGED)
    (tmp_path / "runs" / "layers-4_units-64_seed-0" / "curves.json").unlink()
    page = render(a_study(tmp_path))
    assert "What did not finish, and why" in page
    assert "No run has finished yet" in page
    assert "Key figures" not in page
    assert 'data-spec="wer"' not in page
    assert "<h2>Training curves" not in page


def test_crosses_mark_what_did_not_finish(demo: Path) -> None:
    spec = json.dumps(figure_specs(a_study(demo))["wer"])
    assert figures.CROSS in spec
    assert DIVERGED["reason"] in spec
    assert figures.CROSS not in json.dumps(figure_specs(a_study(demo))["throughput"])


def test_the_papers_numbers_are_the_published_ones() -> None:
    assert [(row["num_layers"], row["wer_percent"]) for row in CONSTANT_WIDTH.rows][::5] == [(8, 35.69), (88, 27.23)]
    assert min(CONSTANT_PARAMETERS.rows, key=lambda row: row["wer_percent"])["hidden_size"] == 608
    assert [row["wer_percent"] for row in SKIP_SPAN.rows][:2] == [100.0, 38.77]
    # Constant parameters means what it says: 2 H^2 L is the same within 8 %.
    sizes = [2 * row["hidden_size"] ** 2 * row["num_layers"] for row in CONSTANT_PARAMETERS.rows]
    assert max(sizes) / min(sizes) < 1.08


def test_curves_are_thinned_to_what_a_page_can_carry_and_keep_their_spikes(tmp_path: Path) -> None:
    folder = write_run(tmp_path, 4, 0, points=500)
    told = json.loads((folder / "curves.json").read_text())
    told["train/loss"][250][1] = 5000.0
    (folder / "curves.json").write_text(json.dumps(told))
    rows = study_rows(tmp_path)
    few = curves.read_curves(rows, tmp_path)[rows[0]["folder"]]["train/loss"]
    assert len(few[0]) == 500
    many = curves.read_curves(rows * 1000, tmp_path)[rows[0]["folder"]]["train/loss"]
    assert len(many[0]) <= curves.MOST_POINTS_A_PAGE // 3000
    assert 5000.0 in many[1]
    assert many[0] == sorted(many[0])


def test_wer_is_in_percent_and_a_wide_loss_is_logarithmic(demo: Path) -> None:
    found = curves.read_curves(study_rows(demo), demo)
    assert max(found[study_rows(demo)[0]["folder"]]["val/wer"][1]) == 100.0
    assert curves.is_logarithmic(found, "train/loss")
    assert not curves.is_logarithmic(found, "val/wer")
    assert not curves.is_logarithmic({"run": {"train/loss": [[0, 1], [0.0, 50.0]]}}, "train/loss")


def test_figures_are_saved_for_a_readme(demo: Path) -> None:
    write_figures(demo / "figures", a_study(demo))
    assert (demo / "figures" / "wer.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (demo / "figures" / "memory.svg").read_text()
