"""Verdicts to read: one self-contained web page, Markdown, tables and figures for papers. No torch."""

from walkback.report.write import write_report as write_report
