"""What the embedded corpus says: strings of digits, or free sentences from a lexicon by a small grammar.

Texts hold a-z, apostrophes and single spaces alone, which the default vocabulary covers.
"""

from functools import cache
from pathlib import Path

import numpy as np

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

PLACES = ("in", "near", "behind", "under", "beside", "across", "over", "from", "before", "at")
STARTS = ("the", "a", "my", "your", "our", "his", "her", "their", "this", "that", "every", "no", "one", "another")
LINKS = ("and", "but", "because", "while", "when", "so", "until", "if")
PHRASES = (
    "don't say that",
    "it's time to go",
    "i can't hear you",
    "we'll see",
    "that's all",
    "let's begin",
    "who's there",
)


def digits(random: np.random.Generator) -> str:
    """One to six digits."""
    return " ".join(random.choice(DIGITS, size=int(random.integers(1, 7))))


def sentence(random: np.random.Generator) -> str:
    """Subject, verb, object, with a place, an adverb or a second clause now and then."""
    if random.random() < 0.04:
        return _one(random, PHRASES)
    text = _clause(random)
    return f"{text} {_one(random, LINKS)} {_clause(random)}" if random.random() < 0.3 else text


def of_words(random: np.random.Generator, words: list[str]) -> str:
    """One to eight words of a list of one's own."""
    return " ".join(random.choice(np.array(words), size=int(random.integers(1, 9))))


@cache
def _lexicon() -> dict[str, list[str]]:
    """Words by kind; an underscore stands for the space of a verb of two words."""
    text = Path(__file__).with_name("lexicon.txt").read_text(encoding="utf-8")
    kinds = (block.split(":\n") for block in text.split("\n\n"))
    return {name: words.split() for name, words in kinds}


def _clause(random: np.random.Generator) -> str:
    parts = [_noun_phrase(random), _one(random, _lexicon()["verbs"]).replace("_", " "), _noun_phrase(random)]
    if random.random() < 0.4:
        parts += [_one(random, PLACES), _noun_phrase(random)]
    if random.random() < 0.25:
        parts.append(_one(random, _lexicon()["adverbs"]))
    return " ".join(parts)


def _noun_phrase(random: np.random.Generator) -> str:
    start, noun = _one(random, STARTS), _one(random, _lexicon()["nouns"])
    adjective = [_one(random, _lexicon()["adjectives"])] if random.random() < 0.45 else []
    first = (adjective or [noun])[0]
    return " ".join(["an" if start == "a" and first[0] in "aeiou" else start, *adjective, noun])


def _one(random: np.random.Generator, choices: "list[str] | tuple[str, ...]") -> str:
    return choices[int(random.integers(len(choices)))]
