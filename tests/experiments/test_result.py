"""`result.json`: as the schema says, whatever became of the run, and never half of one."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from experiments.run.result import FILE_NAME, SCHEMA_PATH, Result, read_result

SCHEMA = json.loads(SCHEMA_PATH.read_text())


def result(**values: Any) -> Result:
    return Result("demo", {"model": {"num_layers": 4}}, "0" * 64, 0, **values)


def test_the_schema_names_every_field_and_no_other() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert list(SCHEMA["properties"]) == SCHEMA["required"]
    assert set(SCHEMA["properties"]) == {field.name for field in dataclasses.fields(Result)}


@pytest.mark.parametrize("status", ["finished", "diverged", "stopped", "failed"])
def test_a_result_of_every_status_is_valid(tmp_path: Path, status: Any) -> None:
    result(status=status, reason="why", wer=0.5).write(tmp_path)
    read = read_result(tmp_path)
    jsonschema.validate(read, SCHEMA)
    assert read is not None
    assert read["status"] == status


@pytest.mark.parametrize("broken", [{"status": "done"}, {"wer": "10 %"}, {"errors": 1.5}, {"surprise": 1}])
def test_the_schema_refuses_what_is_not_a_result(tmp_path: Path, broken: dict[str, Any]) -> None:
    result().write(tmp_path)
    read = read_result(tmp_path)
    assert read is not None
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(read | broken, SCHEMA)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_null_in_strict_json(tmp_path: Path, value: float) -> None:
    result(loss=value, plan={"tiles": [value]}).write(tmp_path)
    read = json.loads((tmp_path / FILE_NAME).read_text(), parse_constant=pytest.fail)
    assert read["loss"] is None
    assert read["plan"] == {"tiles": [None]}


@pytest.mark.parametrize(("wer", "converged"), [(0.94, True), (0.95, False), (1.2, False), (None, None)])
def test_a_finished_run_that_learnt_nothing_is_marked(
    tmp_path: Path, wer: float | None, converged: bool | None
) -> None:
    finished = result(status="finished", wer=wer)
    finished.write(tmp_path)
    assert finished.converged is converged


def test_nothing_is_left_beside_the_file(tmp_path: Path) -> None:
    result().write(tmp_path)
    result(status="finished").write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ValueError, match="is not a run's result"):
        read_result(tmp_path)


def test_the_last_line_a_person_reads() -> None:
    done = result(status="finished", wer=0.032, errors=12, words=375, val_wer=0.04, wall_seconds=123.4)
    assert done.summary(Path("runs/a")) == (
        "finished; test WER 3.2% (12 errors in 375 words); best dev WER 4.0%; 123 s; runs/a/result.json"
    )


@pytest.mark.parametrize(("converged", "said"), [(True, "words); best"), (False, "words), not converged; best")])
def test_a_run_that_did_not_converge_says_so(converged: bool, said: str) -> None:
    done = result(status="finished", wer=1.0, errors=375, words=375, val_wer=1.0, converged=converged)
    assert said in done.summary(Path("runs/a"))
