"""Text <-> token ids. Id 0 is the CTC blank, never a character; the default has 29: blank, space, apostrophe, a-z.

A vocabulary file holds one token a line in the order of the ids: `<blank>` first, `<space>` for the space; of
sub-words, each with a tab and its score, and a space inside as it is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from data.subwords import VocabularyError, scores_of, segment

BLANK, SPACE = "<blank>", "<space>"
DEFAULT_CHARACTERS = " 'abcdefghijklmnopqrstuvwxyz"


class Vocabulary:
    """The units in the order of their ids 1, 2, ...; `len` counts the blank too.

    Units are single characters, or sub-words with a score each (`data/subwords.py`). `characters` is all of it as one
    string, from which a checkpoint makes the vocabulary again: the characters one after the other, or a sub-word, a tab
    and its score a line.
    """

    blank = 0

    def __init__(self, characters: str | Sequence[str] = DEFAULT_CHARACTERS) -> None:
        self._scores: dict[str, float] = {}
        if isinstance(characters, str) and "\t" in characters:
            self._scores = scores_of(characters)
        self.units = tuple(self._scores or characters)
        self.characters = characters if isinstance(characters, str) else "".join(characters)
        self._ids = {unit: i for i, unit in enumerate(self.units, start=1)}
        if not self._scores and (fault := _fault(self.units)) is not None:
            raise VocabularyError(f"Vocabulary: {fault[1]}; give each single character once.")

    @property
    def has_subwords(self) -> bool:
        """Whether units may be longer than a character."""
        return bool(self._scores)

    def __len__(self) -> int:
        return len(self.units) + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.characters == other.characters

    __hash__ = None  # type: ignore[assignment]

    def encode(self, text: str) -> list[int]:
        """Token ids of the text. Raises VocabularyError for characters that the vocabulary lacks."""
        try:
            return [self._ids[unit] for unit in (segment(text, self._scores) if self._scores else text)]
        except KeyError:
            raise VocabularyError(self.complaint([text])) from None

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids; blanks are left out (repeats are not merged: that is the decoder's work)."""
        return "".join(self.units[token - 1] for token in tokens if token != self.blank)

    def complaint(self, texts: Iterable[str], place_of: Callable[[int], str] | None = None) -> str:
        """One sentence about the characters outside the vocabulary, with counts and an example; empty for none.

        `place_of` says where a text stands, by its number.
        """
        counts: Counter[str] = Counter()
        examples: dict[str, tuple[int, str]] = {}
        for number, text in enumerate(texts):
            if outside := [character for character in text if character not in self._ids]:
                counts.update(outside)
                for character in outside:
                    examples.setdefault(character, (number, text))
        place = None if place_of is None else lambda character: place_of(examples[character][0])
        return self.complaint_about(counts, {c: text for c, (_, text) in examples.items()}, place)

    def complaint_about(
        self, counts: Mapping[str, int], examples: Mapping[str, str], place_of: Callable[[str], str] | None = None
    ) -> str:
        """The same of characters that were counted before, each with a text that holds it.

        `place_of` says where the text of a character stands.
        """
        counts = Counter({character: count for character, count in counts.items() if character not in self._ids})
        if not counts:
            return ""
        named = ", ".join(f"{character!r} ({count}x)" for character, count in counts.most_common(8))
        worst = counts.most_common(1)[0][0]
        place = "" if place_of is None else f" ({place_of(worst)})"
        lowers = all(character.lower() in self._ids for character in counts)
        remedy = (
            "set text_case to lower" if lowers else "make a vocabulary with python -m data vocabulary, or mend the text"
        )
        return (
            f"{len(counts)} characters are not in the vocabulary of {len(self)} tokens: {named}, "
            f"as in {examples[worst][:60]!r}{place}; {remedy}."
        )

    @classmethod
    def load(cls, path: str | Path | None) -> "Vocabulary":
        """The vocabulary of a file, or the default one for None."""
        if path is None:
            return cls()
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
        except OSError as error:
            raise VocabularyError(
                f"{path}: the vocabulary cannot be read ({error.strerror}); check the path."
            ) from error
        except UnicodeDecodeError as error:
            raise VocabularyError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8.") from error
        if not lines or lines[0] != BLANK:
            raise VocabularyError(
                f"{path}:1: the first line is {lines[0][:40]!r}; it must be {BLANK}: make the file with "
                "python -m data vocabulary."
            )
        if "\t" in "".join(lines):
            try:
                return cls("\n".join(lines[1:]))
            except VocabularyError as error:
                raise VocabularyError(f"{path}: {error}") from None
        units = [" " if line == SPACE else line for line in lines[1:]]
        if (fault := _fault(units)) is not None:
            raise VocabularyError(f"{path}:{fault[0] + 2}: {fault[1]}; give each single character once, a line each.")
        return cls(units)

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> "Vocabulary":
        """The characters that occur in the texts, space first and the rest sorted."""
        occurring = set().union(*map(set, texts))
        return cls([" ", *sorted(occurring - {" "})])

    def save(self, path: str | Path) -> None:
        """Write the file that `load` reads."""
        characters = [SPACE if character == " " else character for character in self.units]
        lines = [BLANK, *(self.characters.split("\n") if self._scores else characters)]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _fault(units: Sequence[str]) -> tuple[int, str] | None:
    """The number of the first unit that is no character or there twice, and what it is."""
    seen: set[str] = set()
    for number, unit in enumerate(units):
        if len(unit) != 1 or unit in seen:
            return number, f"{unit!r} is {'there twice' if unit in seen else 'not one character'}"
        seen.add(unit)
    return None if units else (0, "it is empty")
