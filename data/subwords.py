"""Sub-word units: a unigram language model over pieces of text (Kudo, ACL 2018), trained by sentencepiece.

A text is cut into the pieces whose scores (log probabilities) sum to the most; sentencepiece is needed to train
alone. A piece holds its spaces as they are, and nothing is put before the first word, so the pieces of a text join to
that text.
"""

import io
import math
from collections.abc import Iterable, Mapping

from data.extras import missing_package


class VocabularyError(ValueError):
    """A vocabulary that cannot be used, or text that holds characters outside it."""


def scores_of(lines: str) -> dict[str, float]:
    """Pieces and scores of lines `piece<TAB>score`. Raises VocabularyError for a line of another form."""
    scores: dict[str, float] = {}
    for line in lines.split("\n"):
        piece, tab, score = line.rpartition("\t")
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not tab or not piece or not math.isfinite(value) or piece in scores:
            raise VocabularyError(
                f"Vocabulary: {line!r} is not a new piece, a tab and its score; train the units again."
            )
        scores[piece] = value
    return scores


def segment(text: str, scores: Mapping[str, float]) -> list[str]:
    """The pieces of the text with the greatest sum of scores. Raises KeyError where no pieces make the text."""
    longest = max(map(len, scores))
    best = [0.0] + [-math.inf] * len(text)
    length_of_last = [0] * (len(text) + 1)
    for end in range(1, len(text) + 1):
        for start in range(max(0, end - longest), end):
            score = scores.get(text[start:end])
            if score is not None and best[start] + score > best[end]:
                best[end], length_of_last[end] = best[start] + score, end - start
    pieces: list[str] = []
    end = len(text)
    while end:
        if not length_of_last[end]:
            raise KeyError(text[end - 1])
        pieces.append(text[end - length_of_last[end] : end])
        end -= length_of_last[end]
    return pieces[::-1]


def train(texts: Iterable[str], units: int) -> str:
    """`units` pieces of the texts with their scores, as lines; every character that occurs is one of them.

    Raises VocabularyError where sentencepiece is missing or the texts have not so many pieces.
    """
    try:
        import sentencepiece
    except ModuleNotFoundError as error:
        raise VocabularyError(missing_package(error)) from error
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=units + 1,  # its <unk>, which is not kept
            model_type="unigram",
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            split_by_whitespace=True,
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise VocabularyError(f"{units} units cannot be made of these texts ({reason}); ask for fewer.") from error
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [i for i in range(processor.get_piece_size()) if not processor.is_unknown(i)]
    return "\n".join(
        f"{processor.id_to_piece(i).replace(chr(0x2581), ' ')}\t{processor.get_score(i):.6g}" for i in pieces
    )
