"""Words of a page's charts that a reader would not see whole: those that reach beyond their picture."""

from typing import Any

_CUT = """() => [...document.querySelectorAll("svg.marks")].flatMap((svg) => {
  const picture = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    const seen = text.textContent && text.getAttribute("opacity") !== "0";
    return seen && (box.left < picture.left - 1 || box.right > picture.right + 1
      || box.top < picture.top - 1 || box.bottom > picture.bottom + 1);
  }).map((text) => text.textContent);
})"""


def cut_words(page: Any) -> list[str]:
    """The text of each of them, of a page whose charts are all drawn."""
    return list(page.evaluate(_CUT))
