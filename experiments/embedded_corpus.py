"""The corpus that a card may ask for under `synth:`, spoken once, before the first run that needs it.

Runs that start side by side wait for the one that speaks it. A corpus of other options in the same place is an error,
never overwritten (`data/synth.py`).
"""

import fcntl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass
class Synth:
    """`output` null: no corpus is made. The rest as `python -m data synth --help` explains it."""

    output: str | None = None
    hours: float = 0.5
    vocabulary: Literal["digits", "words"] = "digits"
    speakers: int = 40
    seed: int = 0

    def speak(self) -> None:
        """Make the corpus where it is missing or unfinished. Raises SynthError, a ValueError (`data/synth.py`)."""
        if self.output is None:
            return
        from data.synth import Options, synthesize

        options = Options(hours=self.hours, seed=self.seed, vocabulary=self.vocabulary, speakers=self.speakers)
        folder = Path(self.output)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "test.jsonl").exists():
                print(f"speaking {self.hours:g} h of {self.vocabulary} into {folder}", flush=True)
            synthesize(folder, options)
