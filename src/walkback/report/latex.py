"""Tables for papers: LaTeX with booktabs, safe for any label and for pdfLaTeX's character set."""

from __future__ import annotations

import re

from walkback.report.table import Column, Table

_ONE_PAGE = 45  # rows that fit on a page; longer tables break across pages


def render_latex(table: Table) -> str:
    """A `table` float, or a `longtable` where one page is not enough."""
    return _long(table) if len(table.rows) > _ONE_PAGE else _float(table)


def escape(text: str) -> str:
    """Text that pdfLaTeX prints as written; a character it has no glyph for is named by its code point."""
    return re.sub(r"[⁻⁰¹²³⁴-⁹]+|.", lambda match: _glyph(match[0]), text, flags=re.DOTALL)


def _float(table: Table) -> str:
    lines = [
        "% needs \\usepackage[T1]{fontenc} and \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering\\small",
        *_caption(table, ""),
        f"\\begin{{tabular}}{{{_alignment(table.columns)}}}",
        "\\toprule",
        _header(table),
        "\\midrule",
        *_body(table),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _long(table: Table) -> str:
    lines = [
        "% needs \\usepackage[T1]{fontenc} and \\usepackage{booktabs,longtable}",
        "{\\small",
        f"\\begin{{longtable}}{{{_alignment(table.columns)}}}",
        *_caption(table, "\\\\"),
        "\\toprule",
        _header(table),
        "\\midrule",
        "\\endfirsthead",
        "\\toprule",
        _header(table),
        "\\midrule",
        "\\endhead",
        "\\bottomrule",
        "\\endfoot",
        *_body(table),
        "\\end{longtable}",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _caption(table: Table, end: str) -> list[str]:
    return [f"\\caption{{{escape(table.caption)}}}\\label{{tab:{table.name}}}{end}"]


def _alignment(columns: tuple[Column, ...]) -> str:
    return "".join("r" if column.numeric else "l" for column in columns)


def _header(table: Table) -> str:
    return _row(table.titles)


def _body(table: Table) -> list[str]:
    return [_row(cells) for cells in table.cells()]


def _row(cells: list[str]) -> str:
    return " & ".join(map(escape, cells)) + " \\\\"


def _glyph(piece: str) -> str:
    if piece[0] in _POWERS:
        return f"$^{{{''.join(_POWERS[char] for char in piece)}}}$"
    if piece in _COMMANDS:
        return _COMMANDS[piece]
    if piece.isascii():
        return piece if piece.isprintable() else " "
    accented_latin = piece.isalpha() and piece <= "\u017f"
    return piece if accented_latin else f"\\texttt{{U+{ord(piece):04X}}}"


_POWERS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True))
_COMMANDS = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    # After a line's end, LaTeX would read these as an argument of the line break.
    **{char: f"{{{char}}}" for char in "[]*"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': "\\textquotedbl{}",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "±": "$\\pm$",
    "×": "$\\times$",
    "·": "$\\cdot$",
    "∞": "$\\infty$",
    "≥": "$\\ge$",
    "≤": "$\\le$",
    "Γ": "$\\Gamma$",
    "α": "$\\alpha$",
    "δ": "$\\delta$",
    "ν": "$\\nu$",
    "ρ": "$\\rho$",
    "λ": "$\\lambda$",
    "η": "$\\eta$",
    "β": "$\\beta$",
    "ε": "$\\varepsilon$",
    "τ": "$\\tau$",
    "ψ": "$\\psi$",
    "σ": "$\\sigma$",
    "Δ": "$\\Delta$",
    "‖": "$\\Vert$",
    "≈": "$\\approx$",
    "→": "$\\to$",
    "∂": "$\\partial$",
    "√": "$\\surd$",
    "“": "``",
    "”": "''",
    "’": "'",
    "…": "\\dots{}",
    "\u00a0": "~",
}
