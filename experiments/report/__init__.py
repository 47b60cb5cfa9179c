"""From `result.json` files to a tidy table, figures and one self-contained page."""
