"""What the report of a rule audit says: one section per rule, and where numbers came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from walkback.core.verdict import Reason, Verdict
from walkback.judge.assemble import Judged
from walkback.judge.naming import names_of
from walkback.judge.protocol import DISCLAIMER
from walkback.judge.thresholds import Thresholds
from walkback.report import words
from walkback.report.audit_tables import (
    full_rows,
    full_runs,
    layer_rows,
    states_of,
    trajectory_rows,
    verdict_rows,
)
from walkback.report.document import Chapter, FigureText, Report, Section
from walkback.report.table import Column, Table
from walkback.store import Bundle


def build_report(
    judged: Sequence[Judged], title: str, study: Chapter | None = None, unmeasured: Sequence[str] = ()
) -> Report:
    waiting = [f"Started, and not measured yet: {name}." for name in unmeasured]
    names, full = names_of(judged), full_rows(judged)
    logics = ", ".join(sorted({item.verdict.logic for item in judged}))
    return Report(
        title=title,
        summary=_summary(judged),
        study=study,
        sections=[_section(name, item) for name, item in zip(names, judged, strict=True)],
        figures=(*FIGURES, FULL_FIGURE) if full.rows else FIGURES,
        verdicts=verdict_rows(judged),
        layers=layer_rows(judged),
        full=full if full.rows else None,
        trajectory=trajectory_rows(judged),
        thresholds=_thresholds([item.verdict for item in judged]),
        recipe=recipe_table(judged),
        identity=identity_table(judged),
        environment=_facts("environment", "What the runs were computed with.", judged, _environment_of),
        notes=(DISCLAIMER, f"Verdict logic: {logics}.", *_full_note(names, judged), *waiting),
    )


FIGURES = (
    FigureText(
        "layer-profile",
        "Three panels over the layer index: state norm, reference norm, and cosine, one line per rule.",
        "Layer by layer at the last measured epoch. Bold: median over seeds; thin: single seeds. "
        "Cosines: filled and solid is exact, open and dashed is what a clamped library function reads.",
    ),
    FigureText(
        "trajectory",
        "Four panels over epochs: test accuracy, largest block growth, reference validity, deep cosine.",
        "Epoch by epoch. Bold: median over seeds; thin: single seeds; a cross ends a run that diverged. "
        "D1 fires above its line, D2 below its line. What is not a finite positive number leaves a gap "
        "on a logarithmic axis.",
    ),
)

FULL_FIGURE = FigureText(
    "full-tier",
    "Two panels over the layer index: nudge ν, and correlation ρ beside its ceiling, one line per rule.",
    "What the credit does, layer by layer, at the last epoch measured in full. Bold: median over seeds; "
    "thin: single seeds. ν is 1 for the gradient; shaded is where random directions lie (mean ± standard "
    "deviation). ρ: filled and solid is the credit, open and dashed its ceiling, the ρ of the gradient.",
)


def _full_note(names: Sequence[str], judged: Sequence[Judged]) -> Iterable[str]:
    """How to get the full tier where it is missing; a captured model cannot be measured again."""
    named = zip(names, judged, strict=True)
    lacking = [name for name, item in named if item.runs[0].trained and not full_runs(item)]
    if lacking:
        whose = "any run" if len(lacking) == len(judged) else ", ".join(lacking)
        yield (
            f"The full tier (parameter cosine, nudging, perturbation correlation, nulls) was not measured "
            f"for {whose}: walkback measure BUNDLE adds it."
        )


def _summary(judged: Sequence[Judged]) -> str:
    """What was audited and how it ended, in one breath."""
    rules = [item for item in judged if not words.is_baseline(item.verdict)]
    nets = sorted({item.runs[0].net for item in judged})
    data = sorted({item.bundles[0].card["data"]["label"] for item in judged})
    where = f"on {', '.join(data)} with {nets[0] if len(nets) == 1 else f'{len(nets)} nets'}"
    ends = Counter(words.tone_of(item.verdict).words for item in rules)
    told = "; ".join(f"{words[0].lower()}{words[1:]}: {number}" for words, number in ends.items())
    labels = len({item.label for item in rules})
    many = f" in {len(rules)} settings" if len(rules) > labels else ""
    return f"{words.plural(labels, 'rule')}{many} {where}." + (
        f" {told[0].upper()}{told[1:]}." if told else ""
    )


def _section(name: str, item: Judged) -> Section:
    card, verdict = item.bundles[0].card["rule"], item.verdict
    states = zip(item.runs, states_of(item), strict=True)
    unusual = [f"Seed {run.seed}: {state}." for run, state in states if state != "finished"]
    return Section(
        name=name,
        about=_about(card),
        claim=verdict.claim,
        badge=words.badge(verdict),
        tone=words.tone_of(verdict),
        why=words.why(verdict),
        steps=verdict.chain,
        diagnostics=_diagnostics(verdict.reasons),
        credit=_credit(item),
        direction=verdict.evidence["C_credit_direction"]["sentence"],
        stem_blocks=_stem_blocks(verdict),
        layers=_own_layers(name, item),
        full=_own_full(name, item),
        notes=unusual + _own_notes(verdict),
    )


def _own_notes(verdict: Verdict) -> list[str]:
    """What is not already said elsewhere: the page shows the disclaimer once, a baseline's note above."""
    if words.is_baseline(verdict):
        return []
    return [note for note in verdict.notes if note != DISCLAIMER]


def _about(card: Mapping[str, str]) -> str:
    """What the rule is, who says so, and what of it is walkback's own reading."""
    parts = [card.get("variant", ""), card.get("about", "")]
    ours = card.get("ours")
    citation = card.get("citation", "")
    sentences = [": ".join(part for part in parts if part), citation[:1].upper() + citation[1:]]
    sentences.append(f"Ours: {ours}" if ours else "")
    return " ".join(f"{sentence.rstrip('.')}." for sentence in sentences if sentence)


def _diagnostics(reasons: Sequence[Reason]) -> Table:
    columns = (
        Column("detector", ("check", "topic"), _show_check, numeric=False),
        Column("value", ("value", "check"), _show_value),
        Column("limit", ("threshold", "check"), _show_limit),
        Column("fires", ("fires",), numeric=False),
        Column("seeds firing", ("seeds",)),
        Column("in words", ("sentence",), numeric=False),
    )
    rows = tuple(
        {
            "check": reason.check,
            "topic": _TOPICS.get(reason.check, ""),
            "value": words.raw(reason),
            "threshold": reason.threshold,
            "fires": words.fires(reason),
            "seeds": _seeds_of(reason),
            "sentence": reason.sentence,
        }
        for reason in reasons
    )
    fields = ("check", "topic", "value", "threshold", "fires", "seeds", "sentence")
    return Table("diagnostics", "The three detectors, over all seeds.", columns, fields, rows)


_TOPICS = {"D1": "scale", "D2": "reference", "D3": "depth"}


def _seeds_of(reason: Reason) -> str:
    """Seeds that fire out of all; a seed without a number is named, not counted as quiet."""
    lost = words.lost(reason)
    if "/" not in reason.seeds:
        return f"{reason.seeds} pooled" if reason.seeds else ""
    if all(reason.detail["gaps"]):
        return lost
    return f"{reason.seeds}, {lost}" if lost else reason.seeds


def _show_check(check: str, topic: str) -> str:
    return f"{check} {topic}".strip()


def _show_value(value: float | None, check: str) -> str:
    if check != "D3" or value is None:
        return words.number(value)
    return f"{words.points(value)} pp"


def _show_limit(value: float, check: str) -> str:
    return f"{words.points(value)} pp" if check == "D3" else words.limit(value)


def _credit(item: Judged) -> Table:
    """The conventional headline Γ beside the exact cosine of the deep layers."""
    columns = (
        Column("direction of the credit", ("what",), numeric=False),
        Column("mean ± sd over seeds", ("mean", "sd"), words.cosines),
    )
    rows = tuple(
        {"what": what, "mean": words.mean_of(values), "sd": words.sd_of(values)}
        for quantity, what in _CREDIT.items()
        for values in ([run.value(quantity) for run in item.runs],)
    )
    settled = [v for run in item.runs if (v := run.value("settling.residual@1")) is not None]
    if settled:
        what = "how far from rest its states had stopped: 0 at rest, 1 where nothing has settled"
        rows += ({"what": what, "mean": words.mean_of(settled), "sd": words.sd_of(settled)},)
    return Table(
        "credit", "What the usual cosine says, and the exact one.", columns, ("what", "mean", "sd"), rows
    )


def _stem_blocks(verdict: Verdict) -> Table | None:
    """Accuracy by who trained the stem and who the blocks, where more than one cell was run."""
    cells = verdict.evidence["stem_blocks"]["cells"]
    if len(cells) < 2:
        return None
    columns = (
        Column("stem trained by", ("stem",), numeric=False),
        Column("blocks", ("blocks",), numeric=False),
        Column("accuracy", ("accuracy",), words.percent, "%"),
    )
    caption = "Who trained the stem, and who the blocks. Rows with one stem differ in the blocks alone."
    if any(cell["accuracy"] is None for cell in cells):
        caption += f" {words.MISSING}: not run on all of the rule's seeds up to one and the same epoch."
    rows = tuple(sorted(cells, key=lambda cell: (cell["stem"], cell["blocks"])))
    return Table("stem-blocks", caption, columns, ("stem", "blocks", "accuracy"), rows)


_CREDIT = {
    "alignment.gamma_mean@1": "Γ as usually reported: clamped cosine, mean over all layers",
    "alignment.gamma_concat@1": "Γ of all layers laid end to end, clamped",
    "alignment.deep_cosine@1": "exact cosine, mean over layers 1 and deeper",
}


def _own_layers(name: str, item: Judged) -> Table:
    """The rule's part of the layer table, without the column that would repeat its name."""
    table = layer_rows([item], [name])
    caption = "At the last measured epoch, median over seeds; layer 0 is the stem's output."
    return replace(table, caption=caption, columns=table.columns[1:])


def _own_full(name: str, item: Judged) -> Table | None:
    """The rule's part of the full table, if it has one; its name and epoch are said once, not per row."""
    table = full_rows([item], [name])
    if not table.rows:
        return None
    caption = (
        f"The full tier at epoch {table.rows[0]['epoch']}, median over the seeds measured. Random ν is "
        "what counts as zero, the ceiling what ρ can reach; the float64 error is that of the reference at "
        "the last layer."
    )
    return replace(table, caption=caption, columns=table.columns[2:])


def _thresholds(verdicts: Sequence[Verdict]) -> Table:
    """Every threshold, its default, and the one these verdicts used ."""
    columns = (
        Column("threshold", ("name",), numeric=False),
        Column("default", ("default",)),
        Column("used here", ("used",)),
        Column("source", ("source",), numeric=False),
        Column("reason", ("reason",), numeric=False),
    )
    rows = tuple(
        {
            "name": row["name"],
            "default": words.limit(float(row["value"])),
            "used": _used(row["name"], verdicts),
            "source": row["source"],
            "reason": row["reason"],
        }
        for row in Thresholds.table()
    )
    caption = "Where each detector fires, who says so, and why."
    return Table("thresholds", caption, columns, ("name", "default", "used", "source", "reason"), rows)


def _used(name: str, verdicts: Sequence[Verdict]) -> str:
    skipped = {"validity": "paper", "compat": "artifact"}.get(name)
    used = [verdict.evidence["thresholds"][name] for verdict in verdicts if verdict.logic != skipped]
    return ", ".join(dict.fromkeys(map(words.limit, used))) or "not used"


def recipe_table(judged: Sequence[Judged]) -> Table:
    return _facts("recipe", "How the runs were trained and measured.", judged, _recipe_of)


def identity_table(judged: Sequence[Judged]) -> Table:
    return _facts("identity", "Which data: SHA-256 of what was used.", judged, _identity_of)


def _facts(
    name: str,
    caption: str,
    judged: Sequence[Judged],
    facts_of: Callable[[Bundle], Iterable[tuple[str, Any]]],
) -> Table:
    """One row per fact on which all runs agree; where they differ, each value with its rules."""
    found: dict[str, dict[str, list[str]]] = {}
    for rule, item in zip(names_of(judged), judged, strict=True):
        for bundle in item.bundles:
            for key, value in facts_of(bundle):
                found.setdefault(key, {}).setdefault(words.text(value), []).append(rule)
    rows = tuple({"fact": key, "value": _agree(values)} for key, values in found.items())
    columns = (Column("what", ("fact",), numeric=False), Column("value", ("value",), numeric=False))
    return Table(name, caption, columns, ("fact", "value"), rows)


def _agree(values: Mapping[str, Sequence[str]]) -> str:
    if len(values) == 1:
        return next(iter(values))
    owners = {value: tuple(dict.fromkeys(rules)) for value, rules in values.items()}
    if len(set(owners.values())) == 1:  # all rules have all of these values, as with seeds
        return ", ".join(owners)
    return "; ".join(f"{value} ({', '.join(rules)})" for value, rules in owners.items())


def _recipe_of(bundle: Bundle) -> Iterable[tuple[str, Any]]:
    hidden = ("rule", "data_identity", "weights", "measurements", "label")
    spec = {key: value for key, value in bundle.spec.items() if key not in hidden}
    measured = {f"measured: {key}": value for key, value in bundle.card.get("measured", {}).items()}
    recipe = {key.replace("_", " "): value for key, value in bundle.card.get("recipe", {}).items()}
    return {key.replace("_", " "): value for key, value in {**spec, **recipe, **measured}.items()}.items()


def _identity_of(bundle: Bundle) -> Iterable[tuple[str, Any]]:
    data = bundle.card.get("data", {})
    named = {"dataset": "dataset", "split": "test split", "eval_batch": "evaluation batch"}
    return [(shown, data[key]) for key, shown in named.items() if key in data]


def _environment_of(bundle: Bundle) -> Iterable[tuple[str, Any]]:
    first = ("walkback", "commit", "python")
    for where in bundle.provenance:
        for key, value in sorted(where.items(), key=lambda pair: pair[0] not in first):
            if isinstance(value, Mapping):
                yield from value.items()
            else:
                yield key.replace("_", " "), value
