"""The settings there are, with the types that the parser of a command gives them."""

from __future__ import annotations

import difflib
from typing import Any

from experiments.settings.in_words import in_words
from experiments.settings.limits import ANY, FORMS, LIMITS


class Settings:
    """`hints`: the type of each key; `sections`: what keys are grouped by; `files`: sections that a file may fill."""

    def __init__(self, parser: Any) -> None:
        self.hints: dict[str, Any] = {}
        self.sections: set[str] = set()
        self.files: set[str] = set()
        self.flags = {"help", "print_config"}
        for action in parser._actions:
            if type(action).__name__ == "_ActionConfigLoad":
                self.files.add(action.dest)
            elif hasattr(action, "_typehint") and not action.dest.endswith(".help"):
                self.hints[action.dest] = action._typehint
            elif action.dest.endswith(".help"):
                self.flags.add(action.dest)
            parts = action.dest.split(".")[:-1]
            self.sections |= {".".join(parts[: n + 1]) for n in range(len(parts))}

    def allowed(self, key: str) -> str:
        """What the key may be, in words."""
        if key in FORMS:
            return FORMS[key][1]
        words, limit = in_words(self.hints[key]), LIMITS.get(key, ANY)
        if "a list of" in words:
            return words + (f", each{limit.words()}" if limit.words() else "")
        number = "a whole number" if "a whole number" in words else "a number"
        allowed = words.replace(number, number + limit.words(), 1)
        return allowed.replace(" or null", ", or null") if limit.words() else allowed

    def close_to(self, key: str) -> list[str]:
        """The settings that may have been meant, at most three."""
        leaf = key.rsplit(".", 1)[-1]

        def likeness(known: str) -> float:
            if known.startswith(f"{key}_"):
                return 1.0
            last = known.rsplit(".", 1)[-1]
            whole = difflib.SequenceMatcher(None, key, known).ratio()
            return max(whole, 0.98 * difflib.SequenceMatcher(None, leaf, last).ratio())

        scored = sorted(((likeness(known), known) for known in (*self.hints, *self.flags)), reverse=True)
        best = scored[0][0]
        return [known for score, known in scored[:3] if score > max(0.7, best - 0.12)]

    def takes(self, key: str) -> bool:
        """Whether the key is one, or lies within one that is given as a class or a mapping."""
        key = key.removesuffix("+")
        if key in self.hints or key in self.flags:
            return True
        above = [known for known in self.hints if key.startswith(f"{known}.")]
        return any(
            "class_path" in in_words(self.hints[known]) or "mapping" in in_words(self.hints[known]) for known in above
        )

    def takes_null(self, key: str) -> bool:
        """Whether the key may be null; the parser would let any be."""
        return key not in self.hints or "null" in in_words(self.hints[key])
