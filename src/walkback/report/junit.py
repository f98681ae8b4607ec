"""Tracks as JUnit XML, which continuous integration reads: one test case per track."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from walkback.core.verdict import Outcome, Verdict
from walkback.judge.verification import Verification

_ELEMENTS = {Outcome.ERROR: "error", Outcome.SKIPPED: "skipped"}


def render_junit(found: Verification) -> str:
    """Inconclusive tracks are failures here: JUnit has no word for an open question, and it is no pass."""
    counts = found.counts
    suite = ElementTree.Element(
        "testsuite",
        name="walkback verify",
        tests=str(counts["total"]),
        failures=str(counts["failed"] + counts["inconclusive"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{found.seconds:.3f}",
    )
    for verdict in found.verdicts:
        _add_case(suite, verdict)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root, " ")
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _add_case(suite: ElementTree.Element, verdict: Verdict) -> None:
    known = verdict.evidence
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname="walkback.tracks",
        name=_clean(f"{known['id']}: {known['name']}"),
        time=f"{known['seconds']:.3f}",
    )
    if verdict.outcome is Outcome.PASS:
        return
    told = " ".join(verdict.notes)
    element = ElementTree.SubElement(
        case, _ELEMENTS.get(verdict.outcome, "failure"), type=verdict.outcome.value, message=_clean(told)
    )
    element.text = _clean(str(verdict))


def _clean(text: str) -> str:
    """Without the control characters that XML cannot hold; an exception's message may have some."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
