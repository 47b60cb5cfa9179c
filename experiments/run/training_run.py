"""One `fit`: the folder it has to itself, what its trainer carries, how it ends.

with run.recorded():          whatever happens inside, the result is written
    trainer.fit               from last.ckpt where there is one
    trainer.test              at the checkpoint best by val/wer
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import yaml
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.exceptions import SIGTERMException
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from experiments.run import provenance
from experiments.run.callbacks.accumulation import Accumulation
from experiments.run.callbacks.checkpoints import BestCheckpoint, LastCheckpoint, RenamedIntoPlace
from experiments.run.callbacks.divergence import Divergence
from experiments.run.callbacks.longest_batch import LongestBatch
from experiments.run.callbacks.measures import Measures
from experiments.run.callbacks.position import Position
from experiments.run.callbacks.progress import progress
from experiments.run.callbacks.step_seed import StepSeed
from experiments.run.callbacks.termination import Termination
from experiments.run.folder import RunFolder, begin, locate, locked
from experiments.run.identity import identity
from experiments.run.metrics_log import MetricsLog
from experiments.run.recorder import Recorder
from experiments.run.result import Result, write_atomically
from experiments.run.utterance_errors import write_errors
from experiments.run.wandb_log import close, mode_of, wandb_logger
from models.gradient_norm import NonFiniteGradientsError

if TYPE_CHECKING:
    from models.recognizer import Recognizer

UNTESTED = (
    "training ended before any validation, so there is no best checkpoint and nothing was tested: train longer "
    "(trainer.max_epochs, max_steps, max_time), or validate more often (trainer.check_val_every_n_epoch, "
    "val_check_interval)"
)


class TrainingRun:
    """Made from a resolved config, before anything heavy is. `folder.finished` is the result where the run is done."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Writes nothing. Raises ValueError where the folder belongs to another run (`run_folder.locate`)."""
        self.config = config
        self.folder: RunFolder = locate(
            identity(config),
            provenance.commit(),
            name=config["name"],
            seed=config["seed_everything"],
            output=config["output"],
            root=config["trainer"]["default_root_dir"],
            resume=config["resume"],
            reuse_commit=config["reuse_commit"],
            data=config["data"],
        )
        self.result = Result(
            config["name"],
            config,
            self.folder.config_hash,
            config["seed_everything"],
            commit=self.folder.commit,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=provenance.versions(),
        )
        self.recorder = Recorder(self.folder, self.result)
        self._held = ExitStack()
        self._wandb: Any | None = None

    @rank_zero_only
    def open(self) -> None:
        """Take the folder and write the config. Raises ValueError while another process trains there."""
        self._held.enter_context(locked(self.folder.path))
        begin(self.folder)
        write_atomically(self.folder.path / "config.yaml", yaml.safe_dump(self.config, sort_keys=False))

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Write the result when what is inside ends by an exception; what was stopped raises SIGTERMException."""
        try:
            yield
        except BaseException as error:
            if self.end(error).status == "stopped":
                raise SIGTERMException from error
            raise

    def callbacks(self, divergence: Divergence, sample_rate: int) -> list[Callback]:
        """In the order they run; Lightning puts checkpoints last."""
        self.recorder.divergence = divergence
        self.recorder.measures = measures = Measures(sample_rate)
        self.recorder.longest = longest = LongestBatch()
        self.recorder.termination = termination = Termination()
        return [
            Accumulation(),
            Position(),
            StepSeed(self.result.seed),
            longest,
            measures,
            self.recorder,
            *progress(),
            BestCheckpoint(self.folder.checkpoints),
            LastCheckpoint(self.folder.checkpoints, self.config["checkpoint_minutes"]),
            termination,
        ]

    def loggers(self) -> list[Logger]:
        """`metrics.jsonl` always; W&B on rank 0."""
        if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            asked = self.config["wandb"]
            name = f"{self.result.name}-{self.folder.config_hash[:10]}"
            mode = mode_of(asked["mode"])
            self._wandb = wandb_logger(self.folder.path, mode, project=asked["project"], name=name, config=self.config)
        return [MetricsLog(self.folder.path)] + ([self._wandb] if self._wandb is not None else [])

    def plugins(self) -> list[Any]:
        """Checkpoints that are always whole."""
        return [RenamedIntoPlace()]

    def train(self, trainer: Trainer, model: LightningModule, data: LightningDataModule) -> Result:
        """Fit, test the best checkpoint, write the result."""
        with self.recorder.termination.listening():
            with self.recorded():
                with suppress(NonFiniteGradientsError):  # the recorder has seen it: the run diverged
                    trainer.fit(model, datamodule=data, ckpt_path=self.folder.resume_from, weights_only=True)
                self.recorder.trained = True
                best = self.folder.checkpoints / "best.ckpt"
                if not best.exists():
                    self.recorder.untested = UNTESTED
                elif self.config["data"]["test_manifest"] is not None:
                    self.result.checkpoint = str(best.relative_to(self.folder.path))
                    trainer.test(model, datamodule=data, ckpt_path=best, weights_only=True, verbose=False)
                    tested = cast("Recognizer", model).error_counts.get("test")
                    if trainer.is_global_zero and tested is not None:
                        write_errors(self.folder.path, tested.by_utterance)
            return self.end()

    def end(self, error: BaseException | None = None) -> Result:
        """Settle the status, write curves and result, let W&B and the folder go."""
        self.recorder.end(error)
        close(self._wandb, self.result)
        self._held.close()
        return self.result
