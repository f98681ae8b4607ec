from __future__ import annotations

import json
import math

from walkback.core.streams import stream_seed
from walkback.core.verdict import Outcome, Reason, Verdict, worst


def reason(**changes):
    fields = {"check": "D1", "name": "D1_scale_growth", "fires": None, "value": math.nan, "threshold": 50.0}
    return Reason(**{**fields, "sentence": "<b>not</b> measured", **changes})


def verdict():
    return Verdict(Outcome.INCOMPLETE, "INCOMPLETE(D3)", "a claim", "artifact", (reason(),))


def test_exit_codes_follow_the_outcome_and_failure_beats_refusal_beats_open():
    assert [o.exit_code for o in (Outcome.PASS, Outcome.FAIL, Outcome.REFUSED, Outcome.INCOMPLETE)] == [
        0,
        1,
        2,
        3,
    ]
    assert worst([Outcome.PASS, Outcome.INCOMPLETE, Outcome.REFUSED, Outcome.FAIL]) is Outcome.FAIL
    assert worst([Outcome.PASS, Outcome.INCOMPLETE, Outcome.REFUSED]) is Outcome.REFUSED
    assert worst([Outcome.PASS, Outcome.INCONCLUSIVE]) is Outcome.INCONCLUSIVE
    assert worst([]).exit_code == 3


def test_a_verdict_is_strict_json_and_never_turns_nan_into_zero():
    text = json.dumps(verdict().to_dict(), allow_nan=False)
    assert json.loads(text)["diagnostics"]["D1_scale_growth"]["value"] is None


def test_a_verdict_reads_like_a_mapping_and_a_frame():
    found = verdict()
    assert found["verdict"] == "INCOMPLETE(D3)"
    assert found["diagnostics"]["D1_scale_growth"]["threshold"] == 50.0
    assert {"outcome", "logic", "chain", "layers"} <= set(found)
    assert list(found.to_frame()["check"]) == ["D1"]


def test_html_is_escaped():
    assert "&lt;b&gt;not" in verdict()._repr_html_()


def test_streams_differ_by_purpose_and_not_by_each_other():
    drawn = {stream_seed(s, *p) for s in range(50) for p in (("init",), ("batches", 0), ("batches", 1))}
    assert len(drawn) == 150
    assert stream_seed(1, "init") == stream_seed(1, "init")
