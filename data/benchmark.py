"""What the data side costs: a large index, an epoch's plan, resuming, padding, reading audio, memory over epochs.

    python -m data benchmark OUT --rows 6000000

Each figure is taken in a process of its own. Memory is the *unique set size* (private pages, from /proc), above that
of the same process with an index of ten rows, while this process holds the large index mapped: pages of the file
count as shared, as they are on a machine with several workers and ranks. Times are by the clock and by the time that
the process had a core ("a_busy_core"): on a machine that does nothing else they are about the same.
"""

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from data.datamodule import SpeechDataModule
from data.index import IndexedCorpus
from data.index_writer import write_rows
from data.manifest import Utterance, read_manifest, write_manifest
from data.shards import pack
from data.synth import Options, synthesize
from data.synthetic_index import librispeech_like, write_synthetic_index

JOINED = 4  # sentences in a file of the audio that is read
BY_COUNT = {"global_batch_size": 512, "per_device_batch_size": 4}
BY_SECONDS: dict[str, Any] = {
    "global_batch_size": None,
    "per_device_batch_size": None,
    "seconds_per_batch": 60.0,
    "micro_batches_per_step": 128,
}


def benchmark(
    out: str | Path, *, rows: int = 6_000_000, hours: float = 0.5, workers: int = 2, epochs: int = 50
) -> dict[str, Any]:
    """Measure everything in the folder `out`, write OUT/data_benchmark.json, and return its content.

    `rows` of the synthetic index; `hours` of spoken FLAC audio for reading, with `workers` processes; `epochs` of the
    memory curve.
    """
    out = Path(out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    large, small = out / f"synthetic-{rows}.arrow", out / "synthetic-10.arrow"
    for path, number in ((large, rows), (small, 10)):
        if not path.exists():
            write_synthetic_index(path, number)
    corpus = IndexedCorpus(large)
    held = (corpus.durations.sum(), corpus.keys.max(), corpus.frames_needed_stored().sum())  # pages in, and shared
    spoken = _spoken(out, hours)
    result: dict[str, Any] = {
        "rows": rows,
        "hours": float(held[0]) / 3600,
        "index_bytes": large.stat().st_size,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "open_seconds": _apart(_open_seconds, large),
        "worker_memory_bytes": _apart(_worker_memory, large) - _apart(_worker_memory, small),
        "rank_memory_bytes": _apart(_rank_memory, large) - _apart(_rank_memory, small),
        "plan_seconds": {
            "count": _apart(_plan_seconds, large, BY_COUNT),
            "seconds": _apart(_plan_seconds, large, BY_SECONDS),
        },
        "resume_seconds": _apart(_resume_seconds, large),
        "padding_share": {"count": _apart(_padding, BY_COUNT), "seconds": _apart(_padding, BY_SECONDS)},
        "loading": loading(spoken, workers),
        "memory_over_epochs": _apart(_memory_slope, spoken / "train.jsonl", epochs),
    }
    (out / "data_benchmark.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _spoken(out: Path, hours: float) -> Path:
    """FLAC files as long as LibriSpeech's: four spoken sentences each, about 13 s."""
    options = Options(hours=hours, vocabulary="words", speakers=20, splits=(("train", 1.0),))
    sentences = read_manifest(synthesize(out / f"sentences-{hours:g}", options) / "train.jsonl")
    joined = out / f"spoken-{hours:g}"
    (joined / "audio").mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(0, len(sentences), JOINED):
        four = sentences[i : i + JOINED]
        samples = np.concatenate([soundfile.read(row.audio_filepath, dtype="int16")[0] for row in four])
        path = joined / "audio" / f"{i // JOINED:05d}.flac"
        soundfile.write(path, samples, 16000)
        text = " ".join(row.text for row in four)
        rows.append(Utterance(path, len(samples) / 16000, text, path.name))
    write_manifest(joined / "train.jsonl", rows)
    return joined


def loading(spoken: Path, workers: int) -> dict[str, Any]:
    """Hours of FLAC audio read in an hour: by one file an utterance, from shards, and decoding alone in one process."""
    manifest = spoken / "train.jsonl"
    index = spoken / "spoken.arrow"
    if not index.exists():
        write_rows(index, pack(read_manifest(manifest), spoken / "shards", shard_bytes=1 << 26))
    runs: dict[str, list[dict[str, float]]] = {"files": [], "shards": []}
    for _ in range(3):  # in turns, so that what else the machine does meets both
        runs["files"].append(_apart(_hours_an_hour, manifest, workers))
        runs["shards"].append(_apart(_hours_an_hour, index, workers))
    best = {name: {by: max(run[by] for run in of) for by in of[0]} for name, of in runs.items()}
    alone = _apart(_decoding, manifest)
    return {"workers": workers, "hours_an_hour": best, "runs": runs, "decoding_alone_a_busy_core": alone}


def _apart(measure: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def _unique_set_size() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _data(path: Path, sizes: dict[str, Any], **options: Any) -> SpeechDataModule:
    data = SpeechDataModule(str(path), **sizes, **options)
    data.setup("fit")
    return data


def _open_seconds(path: Path) -> float:
    start = time.perf_counter()
    corpus = IndexedCorpus(path)
    _ = corpus[len(corpus) // 2].text
    return time.perf_counter() - start


def _worker_memory(path: Path) -> int:
    """A worker that has read rows from all over the index."""
    corpus = IndexedCorpus(path)
    for row in np.random.default_rng(0).integers(len(corpus), size=2000):
        _ = corpus[int(row)]
    return _unique_set_size()


def _rank_memory(path: Path) -> int:
    """A rank that has planned an epoch and handed out its first step."""
    sampler = _data(path, BY_COUNT).train_dataloader().order
    sampler.set_epoch(1)
    next(iter(sampler))
    return _unique_set_size()


def _plan_seconds(path: Path, sizes: dict[str, Any]) -> dict[str, float]:
    data = _data(path, sizes)
    data.plan(0)
    start, busy = time.perf_counter(), time.process_time()
    data.plan(1)
    return {"clock": time.perf_counter() - start, "a_busy_core": time.process_time() - busy}


def _resume_seconds(path: Path) -> dict[str, float]:
    """From a state in the middle of the third epoch to the rows of the next micro-batch, plan included."""
    loader = _data(path, BY_COUNT).train_dataloader()
    step = len(loader) // loader.order.micro_batches_per_step // 2
    done = step * loader.order.micro_batches_per_step
    state = {**loader.state_dict(), "epoch": 2, "step": step, "micro_batches": done}
    start, busy = time.perf_counter(), time.process_time()
    loader.load_state_dict(state)
    next(iter(loader.order))
    return {"clock": time.perf_counter() - start, "a_busy_core": time.process_time() - busy}


def _padding(sizes: dict[str, Any]) -> dict[str, float]:
    from data.batch_sizes import BatchSizes

    durations = librispeech_like(281_000)  # utterances of LibriSpeech's 960 hours
    plans = {
        name: BatchSizes(**sizes).plan(durations, seed=0, epoch=epoch, sorted_first_epoch=True)
        for epoch, name in enumerate(("sorted", "shuffled"))
    }
    return {name: plan.padding_share(durations) for name, plan in plans.items()}


def _hours_an_hour(path: Path, workers: int) -> dict[str, float]:
    """By the clock, and by the time that all processes had a core, which what else the machine does leaves alone."""
    sizes = {"global_batch_size": 16, "per_device_batch_size": 16}
    data = _data(path, sizes, num_workers=workers, cache_audio_seconds=0.0)
    loader = data.train_dataloader()
    for _ in loader:  # starts the workers and warms the page cache
        pass
    seconds, start, busy = 0.0, time.perf_counter(), _busy_seconds()
    for epoch in (1, 2):
        loader.order.set_epoch(epoch)
        for batch in loader:
            seconds += float(batch.audio_lengths.sum()) / data.sample_rate
    return {
        "clock": seconds / (time.perf_counter() - start),
        "a_busy_core": seconds / (_busy_seconds() - busy),
    }


def _busy_seconds() -> float:
    """Processor time of this process and of its children that are alive (the workers)."""
    children = [child.pid for child in multiprocessing.active_children()]
    ticks = 0
    for process in (os.getpid(), *children):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _decoding(manifest: Path) -> float:
    rows = read_manifest(manifest)
    start = time.process_time()
    for row in rows:
        soundfile.read(row.audio_filepath, dtype="float32")
    return sum(row.duration for row in rows) / (time.process_time() - start)


def _memory_slope(manifest: Path, epochs: int) -> dict[str, Any]:
    """Resident bytes after each epoch, and their slope over the last four fifths."""
    data = _data(manifest, {"global_batch_size": 16, "per_device_batch_size": 16}, cache_audio_seconds=0.0)
    loader = data.train_dataloader()
    resident = []
    for epoch in range(epochs):
        loader.order.set_epoch(epoch)
        for batch in loader:
            assert len(batch)
        status = Path("/proc/self/status").read_text(encoding="ascii")
        resident.append(1024 * int(status.split("VmRSS:")[1].split()[0]))
    settled = resident[epochs // 5 :]
    slope = float(np.polyfit(np.arange(len(settled)), settled, 1)[0]) if len(settled) > 1 else 0.0
    return {"epochs": epochs, "bytes_an_epoch": slope, "first": resident[0], "last": resident[-1]}
