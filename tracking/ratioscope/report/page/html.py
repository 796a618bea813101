"""Rendering of the page's templates.

Jinja escapes every value, once; only the stylesheet, the scripts and the figures' JSON are inserted as they are.
"""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ratioscope._version import __version__
from ratioscope.report.figures.panel import Panel
from ratioscope.report.page.values import Group
from ratioscope.report.verdict.cause import location
from ratioscope.runs.worst import parts_of, row_name
from ratioscope.text import number, plain, shown, step_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratioscope.report.page.values import Comparison, Report


def render(template: str, page: Report | Comparison, panels: Sequence[Panel]) -> str:
    """Renders a page that is complete in itself.

    Args:
        template: file name of the template.
        page: values of the template.
        panels: figures that the page's script draws.
    """
    drawings = ",".join(f'{{"key":{json.dumps(panel.key)},"figure":{panel.figure.to_json()}}}' for panel in panels)
    return (
        _environment()
        .get_template(template)
        .render(
            page=page,
            version=__version__,
            style=_asset("page.css"),
            panels=_in_script(f"[{drawings}]"),
            library=_library() if panels else "",
            script=_asset("page.js"),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ratioscope.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": _plain, "number": number, "shown_as": _shown_as, "step_of": step_of}
    environment.filters |= {"location": location, "parts_of": parts_of, "row_name": row_name}
    environment.tests |= {"panel": _is_panel, "group_of_figures": _is_group}
    return environment


def _plain(value: object, limit: int | None = None) -> str:
    return plain(str(value), limit)


def _shown_as(value: float | None, key: str) -> str:
    return shown(key, value)


def _is_panel(entry: object) -> bool:
    return isinstance(entry, Panel)


def _is_group(entry: object) -> bool:
    return isinstance(entry, Group)


def _in_script(text: str) -> Markup:
    """Escapes JSON so that it can neither end its script element nor break a line."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def _library() -> Markup:
    """Compresses plotly's JavaScript: a browser unpacks it faster than it parses 4.8 MB of text."""
    from plotly.offline import get_plotlyjs

    return Markup(base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode("ascii"))


@cache
def _asset(name: str) -> Markup:
    return Markup(files("ratioscope.report").joinpath("assets", name).read_text(encoding="utf-8"))
