"""Templates of the pages; every text that is put into one is escaped."""

from __future__ import annotations

from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from giveaway.text import shown_text


def page(name: str, **values: Any) -> str:
    """The template `name` filled in."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_read),
    )
    environment.filters["as_is"] = Markup  # for code of ours, and JSON that cannot leave its element
    environment.filters["shown"] = shown_text
    environment.filters["tied"] = lambda words: words.replace(" %", "\u00a0%")  # no line ends before the sign
    return environment.get_template(name).render(**values)


def _read(name: str) -> str:
    return resources.files("giveaway.reporting.pages").joinpath(name).read_text(encoding="utf-8")
