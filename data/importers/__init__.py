"""One module a layout of corpora, each with `read(source, out)`; data/import_corpus.py measures and writes."""

KINDS = ("librispeech", "commonvoice", "kaldi", "nemo", "lhotse", "an4", "fsdd", "folder", "csv")
