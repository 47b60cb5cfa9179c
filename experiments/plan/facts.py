"""Where each number of a plan comes from: given, measured (which file, when), predicted (how), or assumed (why)."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["given", "measured", "predicted", "assumption"]


@dataclass(frozen=True)
class Fact:
    """One number that a plan stands on, with its unit, and its source in words."""

    name: str
    value: float | str
    unit: str
    kind: Kind
    source: str

    @property
    def words(self) -> str:
        """Value and unit, as a reader wants them."""
        value = f"{self.value:,.6g}" if isinstance(self.value, float | int) else self.value
        return f"{value} {self.unit}".strip()
