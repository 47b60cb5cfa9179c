"""Every kind of mistake on a command line of `fit` is one sentence: where, what was given, what is allowed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.arguments import CONFIGS, plain
from experiments.cli import EXIT_USAGE, main
from experiments.many_runs.resolving import parser_of
from experiments.settings.checkpoint import check_checkpoint
from experiments.settings.known import Settings
from experiments.settings.limits import FORMS, LIMITS, Limit, malformed
from experiments.settings.mistakes import OURS
from experiments.settings.reading import read_settings

CARD = f"--config={CONFIGS / 'demo.yaml'}"
PYTHON_WORDS = re.compile(r"<class|typing\.|Literal|NoneType|Union|[Vv]alidat|Traceback|Parser key|Errno")
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def parser() -> Any:
    return parser_of("fit", [CARD])


@pytest.fixture
def refused(parser: Any) -> Refused:
    def sentence(*arguments: str) -> str:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence is looked at by the test
            read_settings(parser, plain([CARD, *arguments]))
        said = str(caught.value)
        assert not PYTHON_WORDS.search(said), said
        assert "\n" not in said
        assert len(said) < 250, said
        return said

    return sentence


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--model.num_layer=3", "--model.num_layer is no setting; did you mean --model.num_layers?"),
        ("--modle.num_layers=3", "did you mean --model.num_layers?"),
        ("--num_layers=3", "did you mean --model.num_layers?"),
        ("--learning_rate=1", "did you mean --model.recipe.learning_rate?"),
        ("--max_epochs=3", "did you mean --trainer.max_epochs?"),
        ("--seed=3", "did you mean --seed_everything"),
        ("--lr=3", "did you mean --model.recipe.learning_rate?"),
        ("--print_confg", "did you mean --print_config?"),
        ("--ckpt_path=x", "--resume"),
        ("--qqqq=3", "mend it, or take it out"),
        ("-x", "-x is no setting"),
        ("num_layers=3", "num_layers=3 stands alone on the command line; write a setting as --model.num_layers=VALUE"),
        ("--model.num_layers", "--model.num_layers has no value; give a whole number of 1 or more"),
        ("--model.num_layers=", "--model.num_layers is empty; give a whole number of 1 or more"),
        ("--model.num_layers=three", "--model.num_layers is three; give a whole number of 1 or more"),
        ("--model.num_layers=2.5", "--model.num_layers is 2.5; give a whole number of 1 or more"),
        ("--model.num_layers=-1", "--model.num_layers is -1; give a whole number of 1 or more"),
        ("--model.num_layers.x=1", "--model.num_layers.x is no setting; did you mean --model.num_layers"),
        ("--model.skip_span=0", "give a whole number of 1 or more, or null"),
        ("--model.dropout=1", "--model.dropout is 1; give a number from 0 to below 1"),
        ("--model.recipe.learning_rate=nan", "give a number above 0"),
        ("--model.recipe.optimizer=adam", "--model.recipe.optimizer is adam; give adamw or sgd"),
        ("--model.front_end.first_kernel=[11]", "give a list of 2 whole numbers, each of 1 or more"),
        ("--model.front_end.first_stride=[0,2]", "is [0,2]; give a list of 2 whole numbers, each of 1 or more"),
        ("--model.backend=tpu", "give auto, persistent, cudnn or reference"),
        ("--data.sample_rate=0", "--data.sample_rate is 0; give a whole number of 1000 Hz or more"),
        ("--data.evaluation_batch_size=0", "give a whole number of 1 or more"),
        ("--data.speeds=[0]", "give a list of numbers, each from 0.5 to 2"),
        ("--trainer.precision=bf17", "give 32-true, bf16-mixed"),
        ("--trainer.devices=many", "give auto, how many"),
        ("--trainer.strategy=dpd", "give auto, ddp"),
        ("--trainer.max_time=soon", "give days:hours:minutes:seconds"),
        ("--trainer.accumulate_grad_batches=3", "follows from data.global_batch_size"),
        ("--trainer.logger=true", "set wandb.mode"),
        ("--model.recipe=3", "--model.recipe is 3, and is a section of settings"),
        ("--wandb=online", "give those, such as wandb.mode"),
        ("--output=", "--output is empty; give a folder"),
        ("--name=a/b", "--name is a/b; give a word"),
        ("--model.num_layers=${nosuch}", "--model.num_layers is ${nosuch}, which leads to no setting"),
        ("--model.num_layers=${model.hiden_size}", "did you mean ${model.hidden_size}?"),
        ("--model.num_layers=${name}", "which leads to another kind of value; give a whole number"),
        ("--model.num_layers=${oc.env:NO_SUCH_VARIABLE}", "the environment has no NO_SUCH_VARIABLE; set it"),
        ('--config={"model.num_layer": 3}', "--config '{...}': model.num_layer is no setting"),
        ('--config={"model.num_layers": 3', "is not JSON"),
        ("--config=", "--config names no file"),
        (f"--config={CONFIGS}", "is a folder; name a YAML file in it"),
        (f"--config={CONFIGS / 'fssd.yaml'}", "fsdd.yaml?"),
        (f"--config={CONFIGS / 'studies/plan.yaml'}", "is a card of `plan`; say python -m experiments plan --config"),
        (f"--config={CONFIGS / 'studies/scaling_cpu.yaml'}", "is a card of `scaling`"),
    ],
)
def test_a_mistake_on_the_command_line(refused: Refused, option: str, sentence: str) -> None:
    assert sentence in refused(option)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model:\n  num_layer: 3\n", "card.yaml:2: model.num_layer is no setting; did you mean model.num_layers?"),
        ("model:\n  recipe: {learning_rat: 1}\n", "card.yaml:2: model.recipe.learning_rat is no setting"),
        ("model:\n\n  num_layers: three\n", "card.yaml:3: model.num_layers is three; give a whole number of 1 or more"),
        ("model:\n  num_layers: -1\n", "card.yaml:2: model.num_layers is -1; give a whole number of 1 or more"),
        ("model:\n  num_layers: null\n", "card.yaml:2: model.num_layers is null; give"),
        ("model: 3\n", "card.yaml:1: model is 3, and is a section of settings; give those, such as model.num_layers"),
        ("model:\n", "card.yaml:1: model has nothing below it"),
        ("model: {num_layers: 3}\nmodel: {}\n", "card.yaml:2: model is there twice, first in line 1"),
        ("model:\n  a: 1\n  a: 2\n", "card.yaml:3: model.a is there twice, first in line 2"),
        ("a: [3\nb: 4\n", "card.yaml:2 is not YAML: expected ',' or ']', but got ':', in what begins in line 1"),
        ("model:\n\tnum_layers: 3\n", "card.yaml:2 is not YAML: a tab stands where spaces indent"),
        ("7: 3\n", "card.yaml:1: the key 7 is no word"),
        ("- a\n", "holds a list; write lines"),
        ("hello\n", "holds 'hello' alone"),
        ("# nothing\n", "is empty; write lines"),
        ("model:\n  num_layers: ${nosuch}\n", "card.yaml:2: model.num_layers is ${nosuch}, which leads to no setting"),
        (
            "model:\n  num_layers: ${model.hidden_size}\n  hidden_size: ${model.num_layers}\n",
            "card.yaml:2: model.num_layers is ${model.hidden_size}, which leads back to itself",
        ),
        ("data:\n  sample_rate: 0\n", "card.yaml:2: data.sample_rate is 0"),
    ],
)
def test_a_mistake_in_a_card_names_file_and_line(refused: Refused, tmp_path: Path, text: str, sentence: str) -> None:
    card, above = tmp_path / "card.yaml", tmp_path / "above.yaml"
    card.write_text(text)
    above.write_text("include: [card.yaml]\n")
    assert sentence in refused(f"--config={card}")
    assert sentence in refused(f"--config={above}")


def test_bytes_that_are_no_text(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "card.yaml").write_bytes(b"\xff\xfe\x00")
    assert "card.yaml is not UTF-8 text (byte 0)" in refused(f"--config={tmp_path / 'card.yaml'}")


def test_a_value_is_traced_to_who_set_it_last(refused: Refused, tmp_path: Path) -> None:
    card = tmp_path / "card.yaml"
    card.write_text("data:\n  sample_rate: 8000\n")
    assert refused(f"--config={card}", "--data.sample_rate=7").startswith("--data.sample_rate is 7;")
    card.write_text("seed_everything: -1\n")
    assert "card.yaml:1: seed_everything is -1" in refused(f"--config={card}")


@pytest.mark.parametrize(
    "options",
    [
        ["--trainer.callbacks+=pytorch_lightning.callbacks.TQDMProgressBar", "--trainer.callbacks.refresh_rate=3"],
        ["--trainer.strategy=ddp_find_unused_parameters_true", "--trainer.devices=0,1"],
        ["--trainer.devices", "2", "--model.skip_span", "null"],
        ["--data.train_manifest=[a.jsonl,b.jsonl]", "--data.speeds=[0.9,1.1]", "--model.recipe.clip_norm=1e9"],
        ['--model.recipe={"learning_rate": 0.1}'],
        ["--synth.output=${data.root}/x", "--trainer.limit_train_batches=0.5"],
    ],
)
def test_what_is_right_passes(parser: Any, options: list[str]) -> None:
    read_settings(parser, plain([CARD, *options]))


def test_a_study_card_given_to_the_other_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", CARD]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "demo.yaml is a card of a training; say python -m experiments fit --config" in said


@pytest.mark.parametrize("arguments", [["fit", CARD, "--model.num_layers=x"], ["fit", CARD, "--config=no.yaml"]])
def test_exit_code_and_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == EXIT_USAGE
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "test needs a checkpoint; give --ckpt_path="),
        (["--ckpt_path=no.ckpt"], "--ckpt_path is no.ckpt, which is no file"),
        ([f"--ckpt_path={CONFIGS / 'demo.yaml'}"], "which is no checkpoint"),
    ],
)
def test_untrained_weights_are_not_tested(
    capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert main(["test", CARD, *options]) == EXIT_USAGE
    assert sentence in capsys.readouterr().err


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    trained = {
        "num_layers": 2,
        "dropout": 0.5,
        "features": {"mel_bins": 40, "kind": "log_mel"},
        "front_end": {"k": (3, 3)},
    }
    path = tmp_path / "best.ckpt"
    torch.save({"hyper_parameters": trained, "state_dict": {}}, path)
    same = {"num_layers": 2, "dropout": 0.0, "features": {"mel_bins": 40}, "front_end": {"k": [3, 3]}, "recipe": {}}
    check_checkpoint("test", str(path), same)
    with pytest.raises(
        ValueError, match=r"whose model.num_layers is 2, and the config says 4; give --config runs/NAME"
    ):
        check_checkpoint("test", str(path), same | {"num_layers": 4})
    with pytest.raises(ValueError, match=r"whose model.features.mel_bins is 40, and the config says 80"):
        check_checkpoint("test", str(path), same | {"features": {"mel_bins": 80}})
    torch.save([1], path)
    with pytest.raises(ValueError, match="which holds no network"):
        check_checkpoint("test", str(path), same)


def test_every_number_has_its_limits(parser: Any) -> None:
    settings = Settings(parser)
    assert set(LIMITS) | set(FORMS) | set(OURS) <= set(settings.hints)
    own = [key for key in settings.hints if key.split(".")[0] in ("model", "data", "synth", "divergence")]
    numeric = {key for key in own if "number" in settings.allowed(key)}
    assert numeric == {key for key in LIMITS if key in own}


def test_forms_name_what_there_is() -> None:
    from prnn_ext.planning import BACKENDS

    assert not any(malformed("model.backend", name) for name in BACKENDS)
    assert all(name in FORMS["model.backend"][1] for name in BACKENDS)


def test_limits_at_their_ends() -> None:
    assert Limit(0, 1).allows(0)
    assert Limit(0, 1).allows(1)
    assert not Limit(0, 1, below=True).allows(1)
    assert not Limit(0, above=True).allows(0)
    assert not Limit(0).allows(float("nan"))
