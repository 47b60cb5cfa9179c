"""`fit`, `validate`, `test`, `predict`: Lightning's commands over one LightningModule and one data module.

A card (YAML) stands on `configs/base.yaml` and on the files it includes; options on the command line win over both.
Values that must agree are written as `${...}` and resolved once, after everything was read (parser mode `omegaconf+`).

`fit` is one run (`training_run.py`): found when it was done before, gone on with after a kill, its best checkpoint
tested at the end, its `result.json` written whatever happens.
"""

import logging
import os
import sys
import warnings
from typing import Any, Literal

import jsonargparse
import torch
import yaml
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from data.datamodule import SpeechDataModule
from experiments.arguments import BASE, plain
from experiments.cli import EXIT_DIVERGED, EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, EXIT_USAGE, LIGHTNING
from experiments.embedded_corpus import Synth
from experiments.run.callbacks.divergence import Divergence
from experiments.run.callbacks.hypotheses import Hypotheses
from experiments.run.callbacks.longest_batch import out_of_memory
from experiments.run.callbacks.progress import bar_wanted, progress
from experiments.run.training_run import TrainingRun
from experiments.settings.mistakes import of_trainer
from experiments.settings.nothing_to_do import check_something_to_do
from experiments.settings.reading import read_settings
from models.recognizer import Recognizer

WandbMode = Literal["offline", "online", "disabled"]
EXIT_CODES = {"finished": EXIT_FINISHED, "diverged": EXIT_DIVERGED, "stopped": EXIT_STOPPED, "failed": EXIT_FAILED}


class AlreadyDoneError(Exception):
    """The run that was asked for is there."""


class TrainingCLI(LightningCLI):
    """Lightning's command line over this project's parts; its constructor runs the command."""

    training_run: TrainingRun

    def __init__(self, arguments: list[str]) -> None:
        # Interpolations in files are written from the command's root, whatever file they stand in.
        jsonargparse.set_parsing_settings(omegaconf_absolute_to_relative_paths=True)
        options = {"parser_mode": "omegaconf+", "exit_on_error": False, "allow_abbrev": False}
        example = f"example: python -m experiments {LIGHTNING[arguments[0]].example}"
        below = {name: options | {"default_config_files": [str(BASE)], "epilog": example} for name in LIGHTNING}
        super().__init__(
            Recognizer,
            SpeechDataModule,
            save_config_callback=None,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            parser_kwargs={**options, "prog": "python -m experiments", **below},
            args=arguments,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """`fit` takes `--resume`, with which a run also finds its own checkpoint, in place of `--ckpt_path`."""
        commands = LightningCLI.subcommands()
        commands["fit"] |= {"ckpt_path", "weights_only"}
        return commands

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """What a run has besides trainer, model and data."""
        parser.add_argument("--name", type=str, default="run", help="the experiment's name, part of the run's folder")
        parser.add_argument("--include", type=list[str], default=[], help="files that a card stands on")
        parser.add_argument("--output", type=str | None, default=None, help="the run's folder; runs/NAME-sSEED-HASH")
        parser.add_argument("--corpora", type=str, default="../shared/corpora", help="the root of all corpora")
        parser.add_argument("--resume", type=str, default="auto", help="auto, never, or a checkpoint to go on from")
        parser.add_argument("--reuse_commit", type=bool, default=False, help="take a result of another commit as it is")
        parser.add_argument("--checkpoint_minutes", type=float, default=30.0, help="between two saves of last.ckpt")
        parser.add_argument("--threads", type=int | None, default=None, help="CPU threads; null: as many as cores")
        parser.add_argument("--wandb.mode", type=WandbMode | None, default=None, help="offline (the default)")
        parser.add_argument("--wandb.project", type=str, default="prnn-depth", help="W&B project")
        parser.add_class_arguments(Synth, "synth")
        parser.add_lightning_class_args(Divergence, "divergence")
        # One vocabulary: the data's. The model keeps its characters in the checkpoint.
        parser.link_arguments("data", "model.characters", compute_fn=characters, apply_on="instantiate")

    def _parse_ckpt_path(self) -> None:
        """Lightning lets a checkpoint's arguments win over the command line; here a run's config.yaml names them."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Files first and expanded (`arguments.py`); a mistake is one sentence (`settings/`)."""
        command, *rest = args
        self._corpora_given = any(argument.split("=")[0] == "--corpora" for argument in rest)
        self.config = read_settings(parser, plain(rest), below=command)

    def plain_config(self) -> dict[str, Any]:
        """The command's resolved config as dicts, lists and scalars."""
        assert self.subcommand is not None
        text = self._parser(self.subcommand).dump(self.config[self.subcommand], skip_none=False)
        # What was included is in it, so the saved config stands alone.
        return dict(yaml.safe_load(text)) | {"include": []}

    def instantiate_classes(self) -> None:
        """Make data, model and trainer; a run that fails here has its result too."""
        config = self.plain_config()
        if config["threads"] is not None:
            if config["threads"] < 1:
                raise ValueError(f"--threads is {config['threads']}; give at least 1, or null for as many as cores")
            torch.set_num_threads(config["threads"])
        synth = Synth(**config["synth"])
        if self._corpora_given and synth.output is not None:
            say(f"--corpora changes nothing here: the config speaks its own corpus into {synth.output} (data.root)")
        if self.subcommand != "fit":
            synth.speak()
            super().instantiate_classes()
            return
        check_something_to_do(config)
        self.training_run = TrainingRun(config)
        for message in self.training_run.folder.messages:
            say(message)
        if self.training_run.folder.finished is not None:
            raise AlreadyDoneError(self.training_run.folder.finished["status"])
        self.training_run.open()
        with self.training_run.recorded():
            synth.speak()
            super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """A run's trainer carries its log and its record; the other commands show progress and write nothing."""
        given = self.config_init[self.subcommand]
        chosen = list(given.trainer.callbacks or [])
        if self.subcommand != "fit":
            return super().instantiate_trainer(
                logger=False, callbacks=[*chosen, *progress(), Hypotheses()], enable_progress_bar=bar_wanted(), **kwargs
            )
        run = self.training_run
        return super().instantiate_trainer(
            logger=run.loggers(),
            callbacks=[*chosen, *run.callbacks(given.divergence, given.data.sample_rate)],
            enable_progress_bar=bar_wanted(),
            plugins=run.plugins(),
            default_root_dir=str(run.folder.path),
            **kwargs,
        )

    def fit(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Train and test one run."""
        result = self.training_run.train(self.trainer, model, datamodule)
        say(result.summary(self.training_run.folder.path))

    def predict(self, **arguments: Any) -> None:
        """Hypotheses are printed as they come (`callbacks/hypotheses.py`), not kept."""
        self.trainer.predict(**arguments | {"return_predictions": False})


def run(command: str, arguments: list[str]) -> int:
    """One Lightning command; returns the exit code (`cli.py`)."""
    quiet()
    try:
        cli = TrainingCLI([command, *arguments])
    except AlreadyDoneError as done:
        return EXIT_CODES[str(done)]
    except MisconfigurationException as error:
        return refuse(of_trainer(str(error)))
    except OSError as error:
        return refuse(
            f"{error.filename}: {error.strerror}; check the path and its permissions" if error.filename else str(error)
        )
    except ValueError as error:
        return refuse(str(error))
    except SIGTERMException:  # told by the code; of a fit, `recorded` has written a result that says "stopped"
        return EXIT_STOPPED
    except torch.OutOfMemoryError as error:
        print(f"error: {out_of_memory(error)}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_CODES[cli.training_run.result.status] if command == "fit" else EXIT_FINISHED


def characters(data: SpeechDataModule) -> str:
    """Those of the data's vocabulary."""
    return data.vocabulary.characters


def refuse(message: str) -> int:
    """One line on stderr."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return EXIT_USAGE


@rank_zero_only
def say(message: str) -> None:
    """One line, once."""
    print(message, flush=True)


def quiet() -> None:
    """Lightning's advice about things that are chosen here on purpose, and its use of jsonargparse's older names."""
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    for advice in (
        ".*does not have many workers.*",
        ".*smaller than the logging interval.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*GPU available but not used.*",
        ".*callbacks used to create the checkpoint need to be provided.*",
        ".*Checkpoint directory .* exists and is not empty.*",  # a run that is gone on with has them
    ):
        warnings.filterwarnings("ignore", message=advice)
