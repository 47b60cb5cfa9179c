"""What `fit --help` and its like say at once: what the command does, the options that people use, examples, the cards.

Lightning's own list, all 170 options of it, is `--help=all`; it needs the parser and so six seconds.
"""

import re
from pathlib import Path

from experiments.arguments import CONFIGS

ROOT = CONFIGS.parents[1]
INTRODUCTION = {
    "fit": """Trains one run and tests its best checkpoint. A card, a YAML file, says what is trained; options change
single settings of it. The run's folder, runs/NAME-sSEED-HASH, ends with result.json, curves and checkpoints. Asked for
again, a run is found, or goes on where it was stopped. docs/TRAINING.md says more.""",
    "validate": "Error rate on the dev set, of a checkpoint and the config that lies in its run's folder.",
    "test": "Error rate on the test set, of a checkpoint and the config that lies in its run's folder.",
    "predict": "Hypotheses of the test set, a line an utterance. For other audio there is `transcribe`.",
}
FIT = {
    "--config FILE": "the card; several compose, the later wins",
    "--output DIR": "the run's folder",
    "--seed_everything N": "the seed (0)",
    "--model.num_layers N": "recurrent layers: the depth",
    "--model.hidden_size N": "units a layer: the width",
    "--model.skip_span N": "layers that a residual skip spans; null for none",
    "--model.dropout X": "share of a layer's units",
    "--model.memory_policy NAME": "save, recompute or offload: what is kept for the backward pass",
    "--model.recipe.learning_rate X": "at its highest",
    "--model.recipe.optimizer NAME": "adamw or sgd",
    "--data.train_manifest FILE": "beneath --corpora; val_manifest and test_manifest likewise",
    "--data.global_batch_size N": "utterances of an optimiser step, over all GPUs",
    "--data.per_device_batch_size N": "utterances that one GPU takes at once",
    "--data.num_workers N": "processes that read audio",
    "--trainer.max_epochs N": "passes over the training set",
    "--trainer.max_time DD:HH:MM:SS": "or so long",
    "--trainer.accelerator NAME": "cpu or gpu",
    "--trainer.devices N": "GPUs of this machine; with several, --trainer.strategy=ddp",
    "--trainer.precision NAME": "32-true, bf16-mixed, bf16-true",
    "--corpora DIR": "the root of all corpora",
    "--resume NAME": "auto, never, or a checkpoint to go on from",
    "--wandb.mode NAME": "offline, online or disabled",
    "--print_config": "show the whole config that would be trained, and stop",
}
OTHERS = {
    "--config FILE": "runs/NAME/config.yaml, which names all that the run was",
    "--ckpt_path FILE": "the checkpoint",
    "--data.test_manifest FILE": "another test set, beneath --corpora; val_manifest for the dev set",
    "--data.evaluation_batch_size N": "utterances of a batch",
    "--trainer.accelerator NAME": "cpu or gpu",
    "--corpora DIR": "the root of all corpora",
}
EXAMPLES = {
    "fit": (
        "--config experiments/configs/fsdd.yaml",
        "--config experiments/configs/an4_gpu.yaml --model.num_layers=12 --seed_everything=1",
        "--config experiments/configs/paper_depth.yaml --trainer.devices=8 --corpora=/corpora",
    ),
}
CHECKPOINT = ("--config runs/NAME/config.yaml --ckpt_path runs/NAME/checkpoints/best.ckpt",)


def training_help(command: str) -> str:
    """The text for `fit`, `validate`, `test` or `predict`."""
    options = FIT if command == "fit" else OTHERS
    lines = [f"usage: python -m experiments {command} --config FILE [--KEY=VALUE ...]", "", INTRODUCTION[command], ""]
    lines += ["options that people use (--help=all lists all, in six seconds):"]
    lines += [f"  {option:<33}{words}" for option, words in options.items()]
    lines += ["", "examples:"]
    lines += [f"  python -m experiments {command} {example}" for example in EXAMPLES.get(command, CHECKPOINT)]
    if command == "fit":
        lines += ["", "cards, and what each asks:"]
        for card in sorted(CONFIGS.glob("*.yaml")):
            if question := question_of(card):
                lines += [f"  {card.relative_to(ROOT)}", f"      {question}"]
    return "\n".join(lines)


def question_of(card: Path) -> str:
    """The first sentence under `# Question:`; empty for a file that is no card."""
    text = re.sub(r"\n#\s+", " ", card.read_text(encoding="utf-8"))
    found = re.match(r"# Question:\s+(.*?[?.:](?=\s|$))", text)
    return found[1].rstrip(":") if found else ""
