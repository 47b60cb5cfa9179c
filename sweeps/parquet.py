"""The tidy table as Parquet (extra `index`, which brings pyarrow): column types are found from the CSV text."""

from __future__ import annotations

import io
from pathlib import Path


def write_parquet(path: Path, csv_text: str) -> None:
    """Write the CSV text as a Parquet file. Raises ValueError where pyarrow is not installed."""
    try:
        from pyarrow import csv, parquet
    except ModuleNotFoundError:
        raise ValueError(f"{path}: Parquet needs pyarrow; pip install -e '.[index]', or write a .csv.") from None
    parquet.write_table(csv.read_csv(io.BytesIO(csv_text.encode())), path)
