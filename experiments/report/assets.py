"""What every page carries within itself: style sheet, template, Vega's script, and JSON that is safe in a page."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def asset(name: str) -> str:
    """The text of a file beside this one."""
    return files("experiments.report").joinpath(name).read_text(encoding="utf-8")


@cache
def vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets `window.vegaEmbed`, fit for a script element."""
    import altair
    import vl_convert

    version = altair.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    bundle = vl_convert.javascript_bundle("window.vegaEmbed=vegaEmbed;", vl_version=version)
    return str(bundle).replace("</script", "<\\/script")


def script_json(content: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
