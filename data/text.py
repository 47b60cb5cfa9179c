"""One normaliser for vocabulary, training text, references and hypotheses.

Order: Unicode form, typographic apostrophes to ', case, punctuation, runs of white space to one space. Numbers are left
untouched: "23" is not spelled, since how it was said is not known. Nothing is dropped unless `punctuation="remove"`
says so.
"""

import unicodedata
from dataclasses import dataclass
from typing import Literal

APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\u00b4\u0060", "'"))


@dataclass(frozen=True)
class Normalizer:
    """Callable on a string. `case="keep"` leaves upper case to be refused by a lower-case vocabulary."""

    unicode_form: Literal["NFC", "NFKC"] = "NFC"
    case: Literal["keep", "lower"] = "keep"
    punctuation: Literal["keep", "remove"] = "keep"

    def __call__(self, text: str) -> str:
        """The text in normal form; applying it twice changes nothing more."""
        text = unicodedata.normalize(self.unicode_form, text).translate(APOSTROPHES)
        if self.case == "lower":
            text = unicodedata.normalize(self.unicode_form, text.lower())
        if self.punctuation == "remove":
            text = "".join(c if c == "'" or not unicodedata.category(c).startswith("P") else " " for c in text)
        return " ".join(text.split())
