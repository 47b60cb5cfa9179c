"""How many frames CTC needs for a transcript."""

from collections.abc import Sequence
from itertools import pairwise


def frames_needed(tokens: Sequence[int] | str) -> int:
    """Frames that a CTC path takes at least: one a token, one more between two equal neighbours; never none.

    "aab" needs 4, "aaa" 5. An empty transcript needs 1, since an utterance without a frame cannot be evaluated.
    """
    return max(1, len(tokens) + sum(a == b for a, b in pairwise(tokens)))
