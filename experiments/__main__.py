"""`python -m experiments COMMAND ...`; see `cli.py`."""

from data.entry_point import run_command
from experiments.cli import main

if __name__ == "__main__":
    run_command(main)
