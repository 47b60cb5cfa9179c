"""The tidy table as Parquet (extra `index`, which brings pyarrow): column types are found from the CSV text."""

from __future__ import annotations

import io
from pathlib import Path

from data.extras import missing_package


def write_parquet(path: Path, csv_text: str) -> None:
    """Write the CSV text as a Parquet file. Raises ValueError where pyarrow is not installed."""
    try:
        from pyarrow import csv, parquet
    except ModuleNotFoundError as error:
        raise ValueError(f"{path}: {missing_package(error)} A .csv needs nothing.") from error
    parquet.write_table(csv.read_csv(io.BytesIO(csv_text.encode())), path)
