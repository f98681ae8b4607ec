"""Figures inside a page: SVG drawn by matplotlib, cut down and renamed so that several can share it."""

from __future__ import annotations

import re

_ID = re.compile(r'\bid="([^"]+)"')
_USE = re.compile(r'(?:xlink:)?href="#([^"]+)"')
_URL = re.compile(r"url\(#([^)]+)\)")
_COORDINATES = re.compile(r'(?<= )(d|x|y)="([^"]*)"')
_NUMBER = re.compile(r"-?\d+\.\d+")


def inline_svg(svg: str, prefix: str, alt: str) -> str:
    """The `<svg>` element alone: ids prefixed, its style kept to itself, no address of anything outside."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", body)
    body = _ID.sub(rf'id="{prefix}-\1"', body)
    body = _USE.sub(rf'href="#{prefix}-\1"', body)
    body = _URL.sub(rf"url(#{prefix}-\1)", body)
    # The stylesheet of an inlined SVG holds for the whole page unless it is told otherwise.
    body = body.replace("*{stroke-linejoin", f"#{prefix} *{{stroke-linejoin")
    body = _COORDINATES.sub(lambda match: f'{match[1]}="{_shorten(match[2])}"', body)
    body = re.sub(r">\s+<", "><", body)
    label = alt.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    start = f'<svg id="{prefix}" role="img" aria-label="{label}"'
    return re.sub(r'<svg width="[^"]*" height="[^"]*"', lambda _: start, body, count=1)


def _shorten(coordinates: str) -> str:
    """A tenth of a point is finer than any screen; markers, which are small, keep hundredths."""
    rounded = _NUMBER.sub(_round, coordinates)
    return re.sub(r"\s*([MLCQZ])\s*", r"\1", rounded).strip()


def _round(match: re.Match[str]) -> str:
    value = float(match[0])
    return f"{value:.{1 if abs(value) >= 10 else 2}f}".rstrip("0").rstrip(".")
