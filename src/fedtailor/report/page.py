"""The shell of a page: one file that needs no network, light and dark, from desktop to phone."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib.resources import files
from typing import Any

from matplotlib.figure import Figure

from fedtailor.report.style import FONT, SERIES_DARK, SERIES_LIGHT, inline

WIDTHS = {"wide": 9.4, "narrow": 3.8}  # inches; the page shows the one that fits
_DARK = {
    "page": "#0e1114", "surface": "#15181d", "ink": "#e7eaee", "muted": "#a4adb8", "grid": "#30363e", "band": "#1d2127",
    "fill": "#48acfe", "alone": "#9aa3af", "good": "#3f9bee", "bad": "#e08a2e",
    "warn": "#2b2413", "warn-edge": "#8a6a1f", "cells": "invert(1) hue-rotate(180deg)",
}  # fmt: skip


def shell(eyebrow: str, title: str, lead: str, body: str) -> str:
    """The whole page around `body`; `lead` is HTML too, title and eyebrow are plain."""
    style, script = _style(), (files("fedtailor.report") / "page.js").read_text(encoding="utf-8")
    # nothing may be loaded; cells are pictures that stand in the page itself
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)} - {escape(eyebrow)}</title>
<style>{style}</style>
</head>
<body>
<header class="top"><p class="eyebrow">{escape(eyebrow)}</p><button class="toggle" type="button" hidden>Dark</button>
<h1>{escape(title)}</h1>{lead}</header>
<main>{body}</main>
<footer><p>Made by fedtailor from the records of the runs alone.</p></footer>
<script>{script}</script>
</body>
</html>
"""


def picture(drawn: Callable[[float], Figure], name: str, title: str, caption: str) -> str:
    """A figure in both widths, of which the page shows one, with its caption."""
    versions = "".join(
        f'<div class="{kind}">{inline(drawn(width), f"{name}-{kind}", title, caption)}</div>'
        for kind, width in WIDTHS.items()
    )
    return f"<figure>{versions}<figcaption>{escape(caption)}</figcaption></figure>"


def fold(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>" if body else ""


def _style() -> str:
    text = (files("fedtailor.report") / "page.css").read_text(encoding="utf-8")

    def variables(values: dict[str, Any]) -> str:
        return " ".join(f"--{name}: {value};" for name, value in values.items())

    light = variables({f"series-{i}": colour for i, colour in enumerate(SERIES_LIGHT)})
    dark = variables(_DARK | {f"series-{i}": colour for i, colour in enumerate(SERIES_DARK)})
    return text.replace("LIGHT", light).replace("DARK", dark).replace("FONT", FONT)
