"""Manifests: what is understood, and that each kind of bad line is named with file, line and remedy."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.corpus import ManifestCorpus, read_corpus
from data.manifest import ManifestError, Utterance, read_manifest, scan_manifest, write_manifest

GOOD = b'{"audio_filepath": "a.wav", "duration": 1.5, "text": "aye"}'


def test_byte_order_mark_crlf_and_blank_lines_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\r\n" + GOOD + b"\r\n\r\n   \r\n" + GOOD.replace(b"a.wav", b"b.wav") + b"\r\n")
    first, second = read_manifest(path)
    assert first == Utterance(tmp_path / "a.wav", 1.5, "aye", "a.wav")
    assert second.id == "b.wav"


def test_paths_are_those_of_the_manifests_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "m.jsonl").write_bytes(GOOD + b"\n" + GOOD.replace(b"a.wav", b"/elsewhere/a.wav"))
    monkeypatch.chdir(tmp_path)
    relative, absolute = read_manifest("corpus/m.jsonl")
    assert relative.audio_filepath == tmp_path / "corpus" / "a.wav"
    assert absolute.audio_filepath == Path("/elsewhere/a.wav")


def test_id_defaults_to_relative_path_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(GOOD + b"\n" + GOOD.replace(b"}", b', "offset": 2.5}'))
    assert [row.id for row in read_manifest(path)] == ["a.wav", "a.wav@2.5"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"{oops", "not JSON"),
        (b'["a.wav"]', "JSON list"),
        (b'{"audio_filepath": "a\xff.wav"}', "not UTF-8"),
        (b'{"duration": 1, "text": ""}', "audio_filepath is missing"),
        (b'{"audio_filepath": "", "duration": 1, "text": ""}', "audio_filepath is empty"),
        (b'{"audio_filepath": "a", "text": ""}', "duration is missing"),
        (b'{"audio_filepath": "a", "duration": "1", "text": ""}', "duration is '1'"),
        (b'{"audio_filepath": "a", "duration": NaN, "text": ""}', "duration is nan"),
        (b'{"audio_filepath": "a", "duration": true, "text": ""}', "duration is True"),
        (b'{"audio_filepath": "a", "duration": 0, "text": ""}', "above zero"),
        (b'{"audio_filepath": "a", "duration": -1, "text": ""}', "duration is -1"),
        (b'{"audio_filepath": "a", "duration": 1}', "text is missing"),
        (b'{"audio_filepath": "a", "duration": 1, "text": null}', "text is None"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "", "offset": -1}', "offset is -1"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "", "id": 5}', "id is 5"),
        (b'{"audio_filepath": "a", "duration": 1, "text": "", "byte_offset": 5}', "byte_length"),
        (GOOD, "is that of line 1 too"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_remedy(tmp_path: Path, line: bytes, named: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(GOOD + b"\n\n" + line + b"\n")
    with pytest.raises(ManifestError) as caught:
        read_manifest(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}:3: ")
    assert named in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert [isinstance(row, Utterance) for _, row in scan_manifest(path)] == [True, False]


def test_further_bad_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"{\n{\n{\n")
    with pytest.raises(ManifestError, match="and 2 more bad lines"):
        read_manifest(path)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_manifest_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match="no utterance"):
        read_manifest(path)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"gone\.jsonl: the manifest cannot be read"):
        read_manifest(tmp_path / "gone.jsonl")


def test_ids_that_two_manifests_share_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_bytes(GOOD)
    (tmp_path / "n.jsonl").write_bytes(b"\n" + GOOD)
    with pytest.raises(ManifestError, match=r"n\.jsonl:2: the id 'a\.wav' is that of .*m\.jsonl:1 too; give each"):
        read_corpus([tmp_path / "m.jsonl", str(tmp_path / "n.jsonl")])
    with pytest.raises(ManifestError, match="The list of manifests is empty; name one"):
        read_corpus([])
    with pytest.raises(ManifestError, match=r"m\.jsonl: the manifest is named twice; name it once"):
        read_corpus([tmp_path / "m.jsonl", str(tmp_path / "m.jsonl")])
    assert len(read_corpus(tmp_path / "m.jsonl")) == 1


names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=8
).filter(lambda name: name not in (".", ".."))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            names,
            st.floats(0.001, 1e5),
            st.text(max_size=20).filter(lambda text: text.isprintable()),
            st.none() | st.text(max_size=5).filter(lambda text: text.isprintable()),
            st.sampled_from([0.0, 1.25]),
            st.none() | st.tuples(st.integers(0, 2**40), st.integers(1, 2**30)),
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda row: row[0],
    )
)
def test_what_is_written_is_read_back(tmp_path: Path, rows: list[tuple]) -> None:
    utterances = [
        Utterance(tmp_path / name, duration, text, f"id {i}", speaker, offset, span, segment=offset > 0)
        for i, (name, duration, text, speaker, offset, span) in enumerate(rows)
    ]
    write_manifest(tmp_path / "m.jsonl", utterances)
    assert read_manifest(tmp_path / "m.jsonl") == utterances
    assert not (tmp_path / "m.jsonl.partial").exists()


def test_a_written_manifest_can_be_moved_with_its_folder(tmp_path: Path) -> None:
    write_manifest(tmp_path / "a" / "m.jsonl", [Utterance(tmp_path / "a" / "x" / "b.flac", 1.0, "t", "x/b.flac")])
    assert json.loads((tmp_path / "a" / "m.jsonl").read_text()) == {
        "audio_filepath": "x/b.flac",
        "duration": 1.0,
        "text": "t",
    }
    (tmp_path / "a").rename(tmp_path / "b")
    assert read_manifest(tmp_path / "b" / "m.jsonl")[0].audio_filepath == tmp_path / "b" / "x" / "b.flac"


def test_columns_of_a_corpus_are_those_of_its_rows() -> None:
    corpus = ManifestCorpus([Utterance(Path("a"), 1.0, "x", "one"), Utterance(Path("b"), 2.5, "y", "two")])
    assert corpus.durations.tolist() == [1.0, 2.5]
    assert len(set(corpus.keys.tolist())) == 2
    assert corpus[1].id == "two"
