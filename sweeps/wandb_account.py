"""An account of W&B, asked for in one place: absent, unreachable or refused becomes one sentence.

Nobody is prompted for a key: a command that would write first asks here, so nothing is written when W&B says no.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from data.extras import missing_package

# wandb's own default is 19 s; a page or a table is asked for by somebody who waits.
SECONDS = 15


@contextmanager
def account(purpose: str) -> Iterator[Any]:
    """The public API of W&B (`wandb.Api`) for `purpose`, said as `to save the view in us/depth`.

    Raises ValueError where wandb is not installed, there is no key, the server does not answer, or what it was asked
    inside the block is refused.
    """
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise ValueError(missing_package(error)) from error
    # Whoever asks for an account means the server, whatever WANDB_MODE says of the runs.
    settings = wandb.setup(settings=wandb.Settings(mode="online", silent=True)).settings
    if wandb.api.api_key:  # without one the sentence is another, and nobody is asked
        try:
            _reach(settings.base_url)
        except OSError as error:
            raise ValueError(_sentence(purpose, error)) from error
    try:
        if not wandb.login(prompt=False, timeout=SECONDS):
            raise ValueError(
                f"There is no W&B account on this machine {purpose}; run wandb login, or set WANDB_API_KEY."
            )
        yield wandb.Api(timeout=SECONDS)
    except wandb.errors.Error as error:
        raise ValueError(_sentence(purpose, error)) from error


def _reach(url: str) -> None:
    """Raises OSError where nobody answers. wandb's own service would go on trying, and its end be waited for."""
    try:
        urlopen(url, timeout=SECONDS).close()
    except HTTPError as answer:
        answer.close()


def _sentence(purpose: str, error: Exception) -> str:
    said = " ".join(str(error).split()).rstrip(".")
    return f"W&B was asked {purpose} and said: {said}; check the name, the account (wandb login) and the network."
