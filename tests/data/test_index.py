"""Index and shards: the same corpus as the manifest's, row by row and sample by sample, through one reader."""

import json
import pickle
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
import soundfile
import torch

from data.__main__ import main
from data.audio import AudioError, read_audio
from data.corpus import Corpus, ManifestCorpus, read_corpus
from data.datamodule import SpeechDataModule
from data.index import IndexedCorpus
from data.index_writer import write_rows
from data.manifest import ManifestError, Utterance, read_manifest, write_manifest
from data.shards import pack
from data.text import Normalizer
from data.vocabulary import Vocabulary, VocabularyError


def sounds(corpus: Corpus) -> list[torch.Tensor]:
    rows = [corpus[i] for i in range(len(corpus))]
    return [
        read_audio(
            row.audio_filepath,
            offset=row.offset,
            duration=row.duration,
            byte_span=row.byte_span,
            to_end=not row.segment,
        )
        for row in rows
    ]


def test_an_index_is_the_manifest(synth_corpus: Path, tmp_path: Path) -> None:
    manifest = synth_corpus / "train.jsonl"
    assert main(["index", str(manifest), "--output", str(tmp_path / "i" / "train.arrow")]) == 0
    indexed, plain = read_corpus(tmp_path / "i" / "train.arrow"), ManifestCorpus(read_manifest(manifest))
    assert len(indexed) == len(plain)
    assert [indexed[i] for i in range(len(plain))] == list(plain)
    assert np.array_equal(indexed.durations, plain.durations)
    assert np.array_equal(indexed.keys, plain.keys)
    policy = (Vocabulary(), Normalizer())
    assert np.array_equal(indexed.frames_needed(*policy), plain.frames_needed(*policy))
    assert not indexed.complaint(*policy)
    again = pickle.loads(pickle.dumps(indexed))
    assert again[3] == indexed[3]
    assert len(pickle.dumps(indexed)) < 1000


@pytest.mark.parametrize("workers", [0, 2])
def test_training_from_an_index_over_shards_shows_what_the_manifest_shows(
    synth_corpus: Path, tmp_path: Path, workers: int
) -> None:
    manifest = synth_corpus / "train.jsonl"
    output, shards = tmp_path / "train.arrow", tmp_path / "shards"
    command = ["index", str(manifest), "--output", str(output), "--shards", str(shards), "--shard-megabytes", "1"]
    assert main(command) == 0
    assert len(list(shards.glob("*.tar"))) > 1
    assert not list(shards.glob("*.partial"))

    def batches(path: Path) -> list[tuple[list[str], torch.Tensor, torch.Tensor]]:
        data = SpeechDataModule(str(path), global_batch_size=4, per_device_batch_size=4, num_workers=workers)
        data.setup("fit")
        loader = data.train_dataloader()
        loader.sampler.set_epoch(1)
        return [(batch.utterance_ids, batch.audio, batch.tokens) for batch in loader]

    for one, other in zip(batches(output), batches(manifest), strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
        assert torch.equal(one[2], other[2])


@pytest.mark.parametrize("codec", ["keep", "flac"])
def test_lossless_shards_hold_the_samples_of_files_segments_and_shards(tmp_path: Path, codec: str) -> None:
    random = np.random.default_rng(0)
    rows = []
    for i, (rate, channels, subtype) in enumerate([(16000, 1, "PCM_16"), (8000, 2, "PCM_16"), (44100, 1, "PCM_24")]):
        path = tmp_path / f"{i}.wav"
        soundfile.write(path, random.uniform(-0.5, 0.5, (rate, channels)), rate, subtype=subtype)
        rows.append(Utterance(path, 1.0, f"t{i}", f"{i}.wav"))
        rows.append(Utterance(path, 0.5, f"p{i}", f"{i}.wav@0.25", offset=0.25, segment=True))
    packed = list(pack(rows, tmp_path / "a", codec=codec, shard_bytes=60_000))  # type: ignore[arg-type]
    assert [(row.id, row.text, row.duration) for row in packed] == [(row.id, row.text, row.duration) for row in rows]
    assert len({row.audio_filepath for row in packed}) > 1
    twice = list(pack(packed, tmp_path / "b"))
    for again in (packed, twice):
        for one, other in zip(sounds(ManifestCorpus(again)), sounds(ManifestCorpus(rows)), strict=True):
            assert torch.equal(one, other)
    with tarfile.open(packed[0].audio_filepath) as tar:
        member = tar.getmembers()[0]
        assert packed[0].byte_span == (member.offset_data, member.size)


def test_opus_shards_are_small_and_refuse_other_rates(tmp_path: Path) -> None:
    samples = np.sin(np.arange(16000) / 9) * 0.5
    soundfile.write(tmp_path / "a.wav", samples, 16000)
    (packed,) = pack([Utterance(tmp_path / "a.wav", 1.0, "t", "a")], tmp_path / "s", codec="opus")
    assert packed.byte_span is not None
    assert packed.byte_span[1] < 16000
    assert len(sounds(ManifestCorpus([packed]))[0]) == pytest.approx(16000, abs=1600)
    soundfile.write(tmp_path / "b.wav", samples, 44100)
    with pytest.raises(ValueError, match=r"b\.wav: Opus has no rate of 44100 Hz"):
        list(pack([Utterance(tmp_path / "b.wav", 0.3, "t", "b")], tmp_path / "s2", codec="opus"))


def test_shards_on_an_object_store_are_read_by_range(synth_corpus: Path, tmp_path: Path) -> None:
    rows = list(pack(read_manifest(synth_corpus / "dev.jsonl"), tmp_path / "shards"))
    store = fsspec.filesystem("memory")
    for shard in {row.audio_filepath for row in rows}:
        store.pipe_file(f"/bucket/{shard.name}", shard.read_bytes())
    lines = [
        json.dumps(
            {
                "audio_filepath": f"memory://bucket/{row.audio_filepath.name}",
                "duration": row.duration,
                "text": row.text,
                "id": row.id,
                "byte_offset": row.byte_span[0],
                "byte_length": row.byte_span[1],
            }
        )
        for row in rows
        if row.byte_span
    ]
    (tmp_path / "remote.jsonl").write_text("\n".join(lines))
    remote = read_manifest(tmp_path / "remote.jsonl")
    write_manifest(tmp_path / "again.jsonl", remote)
    assert read_manifest(tmp_path / "again.jsonl") == remote
    write_rows(tmp_path / "remote.arrow", remote)
    indexed = IndexedCorpus(tmp_path / "remote.arrow")
    for corpus in (ManifestCorpus(remote), indexed):
        for one, other in zip(sounds(corpus), sounds(ManifestCorpus(rows)), strict=True):
            assert torch.equal(one, other)
    with pytest.raises(AudioError, match="cannot be read"):
        read_audio(Path("memory://bucket/gone.tar"), byte_span=(0, 10))


def test_an_index_answers_for_its_texts(tmp_path: Path) -> None:
    rows = [Utterance(tmp_path / "a", 1.0, "Aa b", "a"), Utterance(tmp_path / "b", 1.0, "naïve", "b")]
    write_rows(tmp_path / "keep.arrow", rows)
    write_rows(tmp_path / "lower.arrow", rows, Normalizer(case="lower"))
    keep, lower = IndexedCorpus(tmp_path / "keep.arrow"), IndexedCorpus(tmp_path / "lower.arrow")
    letters = Vocabulary(" 'abcdefghijklmnopqrstuvwxyzï")
    plain = ManifestCorpus(rows)
    for normalizer in (Normalizer(), Normalizer(case="lower")):
        said, place = keep.complaint(Vocabulary(), normalizer), plain.complaint(Vocabulary(), normalizer)
        assert said.replace(f"{tmp_path}/keep.arrow:", "row ") == place.replace("(a)", "(row 1)").replace(
            "(b)", "(row 2)"
        )
        assert "keep.arrow:" in said
    assert not lower.complaint(letters, Normalizer(case="lower"))
    assert lower.frames_needed(letters, Normalizer(case="lower")).tolist() == [5, 5]
    assert keep.frames_needed(letters, Normalizer(case="lower")).tolist() == [5, 5]
    assert lower[0].text == "aa b"
    data = SpeechDataModule(str(tmp_path / "keep.arrow"))
    with pytest.raises(VocabularyError, match=r"'A' .1x., 'ï' .1x"):
        data.setup("fit")


def test_what_is_no_index_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"something else")
    with pytest.raises(ManifestError, match=r"a\.arrow: not an index"):
        read_corpus(tmp_path / "a.arrow")
    with pytest.raises(ManifestError, match=r"gone\.arrow: not an index"):
        read_corpus(tmp_path / "gone.arrow")
    with pytest.raises(ManifestError, match="cannot be joined"):
        read_corpus([tmp_path / "a.arrow", tmp_path / "b.jsonl"])
    row = Utterance(tmp_path / "a", 1.0, "t", "same")
    with pytest.raises(ManifestError, match="the id 'same' is there twice"):
        write_rows(tmp_path / "b.arrow", [row, row])
    with pytest.raises(ManifestError, match="no utterance to index"):
        write_rows(tmp_path / "b.arrow", [])
    assert main(["index", "x.jsonl", "--output", str(tmp_path / "name.index")]) == 2
    assert not list(tmp_path.glob("*.partial"))
