"""FAProtocol: a model and a batch in, a Verdict out. And the bundle that keeps such an audit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from walkback import store
from walkback.core.canonical import content_id, sha256
from walkback.core.errors import BadInput
from walkback.core.quantities import Measurements
from walkback.core.verdict import Verdict
from walkback.data.dataset import hash_arrays
from walkback.judge import Evidence, Thresholds, evidence_of, judge
from walkback.judge.assemble import check_frozen
from walkback.judge.chain import layers_named
from walkback.judge.select import open_rates
from walkback.measure import measure_light, measure_rule
from walkback.measure.rows import correct_rows
from walkback.nets.adapter import Adapter
from walkback.nets.batch import Batch
from walkback.nets.parts import Blocks
from walkback.nets.trace import Trace
from walkback.rules import Rule, describe_rule, make_rule
from walkback.rules.base import check_credits
from walkback.run.one import fingerprint, here
from walkback.store.bundle import Member, pack_arrays, pack_items

Credits = Sequence[Tensor] | Callable[[Trace], Sequence[Tensor]]
Baseline = float | Sequence[float] | store.Bundle


class FAProtocol:
    """Audit one trained model on a batch it was not trained on.

    >>> FAProtocol(model, x, y, baseline=0.349).run()["verdict"]  # doctest: +SKIP

    `baseline` is the accuracy of the same net with frozen blocks, trained the same way: a number, one
    number per seed, or a bundle; without it D3 stays open. `rule` is a rule with its feedback, or the
    name of one that needs none; `credits` are one's own, as tensors [a_0 … a_L] or as a function of
    the trace. Without either, alignment is not applicable. `accuracy` replaces the accuracy on (x, y)
    where the full test split is elsewhere. The model is handed back as it came.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Batch,
        y: Tensor,
        *,
        rule: Rule | str | None = None,
        credits: Credits | None = None,
        baseline: Baseline | None = None,
        accuracy: float | None = None,
        blocks: Blocks | None = None,
        out_ln: str | nn.Module | None = None,
        head: str | nn.Module | None = None,
        logic: str = "artifact",
        thresholds: Thresholds | None = None,
        seed: int = 0,
    ) -> None:
        if rule is not None and credits is not None:
            raise BadInput("Give a rule or credits, not both.")
        if thresholds is not None and not isinstance(thresholds, Thresholds):
            raise BadInput(f"thresholds must be walkback.Thresholds, not {type(thresholds).__name__}.")
        if not (rule is None or isinstance(rule, (str, Rule))):
            what = f"the class {rule.__name__}" if isinstance(rule, type) else type(rule).__name__
            raise BadInput(
                f"The rule must be its name or a Rule that was made, not {what}.",
                "walkback.rules.make_rule('dfa') makes one.",
            )
        if not isinstance(seed, (int, np.integer)):
            raise BadInput(f"The seed must be a whole number, not {seed!r}.")
        if not isinstance(model, nn.Module):
            raise BadInput(f"The model must be a torch.nn.Module, not {type(model).__name__}.")
        blocks = blocks if blocks is None or isinstance(blocks, str) else _parts(blocks)
        self.net = Adapter(model, blocks, out_ln, head)
        self.x, self.y = self.net.prepare(x, y)
        self.split = _batch_hash(x, self.y)
        self.rule = make_rule(rule) if isinstance(rule, str) else rule
        self.credits = credits
        self.baseline = _baseline_evidence(baseline)
        self.accuracy = None if accuracy is None else _as_accuracy(accuracy, "accuracy")
        self.logic, self.thresholds, self.seed = logic, thresholds, seed

    def run(self) -> Verdict:
        evidence = self.measure().evidence(self.seed)
        return judge([evidence], [self.baseline], logic=self.logic, thresholds=self.thresholds)

    def measure(self) -> Audit:
        """The numbers without a judgement."""
        with self.net.evaluating(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            trace = self.net.probe(self.x, self.y)
            correct = correct_rows(trace.logits, trace.labels).flatten().cpu().numpy()
            with _unchanged(trace):
                credits = self._credits(trace)
            table = measure_light(trace, credits, epoch=0)
            if self.rule is not None:
                measure_rule(self.rule, 0, table)
        accuracy = float(correct.mean()) if self.accuracy is None else self.accuracy
        table.add(0, "accuracy.test@1", accuracy)
        table.add(0, "loss.test@1", float(trace.losses.mean()))
        return Audit(
            table=table,
            accuracy=accuracy,
            correct=correct if self.accuracy is None else None,
            classes=trace.logits.shape[-1],
            split=self.split if self.accuracy is None else "",
            net=type(self.net.model).__name__,
            fingerprint=fingerprint(self.net),
            label="the model" if self.rule is None else _rule_words(self.rule)["label"],
            role="rule" if self.rule is None else _rule_words(self.rule)["role"],
            blocks=_block_hash(self.net),
            notes=(*self._feedback_note(), *_trace_notes(trace), *_credit_notes(trace, credits)),
        )

    def _feedback_note(self) -> tuple[str, ...]:
        if self.rule is None or self.rule.ready:
            return ()
        label = _rule_words(self.rule)["label"]
        return (
            f"The rule {label} was given without the feedback it was trained with, so its alignment is not "
            "applicable.",
        )

    def _credits(self, trace: Trace) -> Sequence[Tensor] | None:
        if self.rule is not None:
            return _real(check_credits(self.rule.credits(trace), trace)) if self.rule.ready else None
        if self.credits is None:
            return None
        given = self.credits(trace) if callable(self.credits) else self.credits
        listed = list(given) if isinstance(given, Iterable) else [None]
        if not all(isinstance(credit, Tensor) for credit in listed):
            raise BadInput("credits must be torch tensors, one per state, or a function that returns them.")
        return _real(check_credits(listed, trace))


@dataclass(frozen=True)
class Audit:
    """What was measured on one model."""

    table: Measurements
    accuracy: float
    correct: np.ndarray | None
    classes: int
    split: str
    net: str
    fingerprint: str
    label: str
    role: str
    blocks: str
    notes: tuple[str, ...]

    def evidence(self, seed: int | None) -> Evidence:
        return Evidence(
            label=self.label,
            measurements=self.table,
            epoch=0,
            seed=seed,
            role=self.role,
            classes=self.classes,
            accuracy=self.accuracy,
            correct=self.correct,
            split=self.split,
            net=self.net,
            fingerprint=self.fingerprint,
            blocks=self.blocks,
            status={"state": "captured"},
            notes=self.notes,
        )


class Bundle(store.Bundle):
    """A bundle on disk that can also be made from a live model."""

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        x: Batch,
        y: Tensor,
        path: str | Path,
        *,
        label: str | None = None,
        role: str = "rule",
        seed: int = 0,
        rule: Rule | str | None = None,
        credits: Credits | None = None,
        accuracy: float | None = None,
        blocks: Blocks | None = None,
        out_ln: str | nn.Module | None = None,
        head: str | nn.Module | None = None,
    ) -> Bundle:
        """Measure a model of one's own and keep weights, batch and numbers as a bundle.

        The other arguments are those of FAProtocol. The frozen twin is kept with `role="baseline"` and
        serves as another bundle's baseline; so is a model whose rule is one, such as `frozen`.
        """
        if role not in ("rule", "baseline"):
            raise BadInput(f"role is 'rule' or 'baseline', not {role!r}.")
        path = Path(path)
        if path.exists():
            raise BadInput(f"{path} exists already.", "Choose another path, or remove it first.")
        parts: dict[str, Any] = {"blocks": blocks, "out_ln": out_ln, "head": head}
        protocol = FAProtocol(
            model, x, y, seed=seed, rule=rule, credits=credits, accuracy=accuracy, **parts
        )
        audit = protocol.measure()
        weights = pack_arrays(_state_arrays(protocol))
        batch = pack_arrays(_batch_arrays(protocol.x, protocol.y))
        role = "baseline" if audit.role == "baseline" else role
        words = None if protocol.rule is None else _rule_words(protocol.rule)
        notes = (*audit.notes, *(_never_frozen(protocol.net) if role == "baseline" and not words else ()))
        label = label or ("frozen" if role == "baseline" and not words else audit.label)
        spec = {"model": audit.net, "label": label, "seed": seed, "weights": sha256(weights)}
        spec |= {"batch": sha256(batch), "measurements": sha256(audit.table.to_csv().encode())}
        name = words["name"] if words else "frozen" if role == "baseline" else label
        variant = words["variant"] if words else label
        card = {
            "rule": {"label": label, "name": name, "variant": variant, "role": role},
            "net": {"label": audit.net, "fingerprint": audit.fingerprint, "blocks": audit.blocks},
            "data": {
                "label": "evaluation batch",
                "classes": audit.classes,
                "split": audit.split,
                "dataset": "",
            },
            "measured": {"mode": "eval", "batch": int(protocol.y.numel()), "reduction": "sum, per sample"},
            "notes": list(notes),
        }
        bundle = cls.create(path, id=content_id(spec), spec=spec, card=card)
        members = [
            Member("checkpoints/epoch-0000.safetensors", "checkpoint", weights, 0),
            Member("eval.safetensors", "eval", batch),
        ]
        if audit.correct is not None:
            items = pack_items({0: audit.correct})
            members.append(Member("items.safetensors", "items", items))
        # last: a folder that has it is taken for a run
        members.append(Member("measurements.csv", "measurements", audit.table.to_csv().encode()))
        status = {"state": "captured", "epoch": 0, "reason": ""}
        bundle.commit(members, status=status, environment=here(protocol.net.device))
        return cls(path, bundle._manifest)


def _real(credits: list[Tensor]) -> list[Tensor]:
    """Credits as numbers that can be compared; the imaginary half of one would be lost without a word."""
    for layer, credit in enumerate(credits):
        found = "complex" if credit.is_complex() else "on the meta device" if credit.is_meta else ""
        found = "sparse" if credit.layout != torch.strided else found
        if found:
            raise BadInput(f"The credit of layer {layer} is {found}: give a dense tensor of real numbers.")
    return credits


@contextlib.contextmanager
def _unchanged(trace: Trace) -> Iterator[None]:
    """The reference is taken before anyone's credits, which must leave it as it is: e.div_(N) would not."""
    watched = {"reference": trace.reference, "error": [trace.error], "logits": [trace.logits]}
    watched |= {"labels": [trace.labels], "states": [*trace.outputs, *trace.states]}
    before = {name: [tensor._version for tensor in tensors] for name, tensors in watched.items()}
    yield
    changed = [n for n, tensors in watched.items() if [t._version for t in tensors] != before[n]]
    if changed:
        raise BadInput(
            f"The credits change the {changed[0]} of the trace in place, with which they are compared.",
            "Work on a copy: e = e / len(e), not e /= len(e).",
        )


def _credit_notes(trace: Trace, credits: Sequence[Tensor] | None) -> tuple[str, ...]:
    """Rows without a direction are left out of a cosine; who reads the cosine should know."""
    found: dict[str, list[int]] = {}
    for layer, credit in enumerate(credits or ()):
        rows = trace.rows(credit)
        odd = {"finite": ~torch.isfinite(rows).all(1), "zero": (rows == 0).all(1)}
        for what, which in odd.items():
            if count := int(which.sum()):
                words = f"{'not finite' if what == 'finite' else what} in {count} of {len(rows)} rows"
                found.setdefault(words, []).append(layer)
    return tuple(f"The credit of {layers_named(layers)} is {words}." for words, layers in found.items())


def _trace_notes(trace: Trace) -> tuple[str, ...]:
    return (*_random_note(trace), *_padding_note(trace), *_stream_note(trace))


def _random_note(trace: Trace) -> tuple[str, ...]:
    if not trace.random:
        return ()
    return (
        "The model draws random numbers in evaluation mode, and another pass gives other logits: every "
        "number here is of one draw. Is dropout called without training=self.training?",
    )


def _padding_note(trace: Trace) -> tuple[str, ...]:
    mask = trace.inputs.get("attention_mask") if isinstance(trace.inputs, Mapping) else None
    left_out = 0 if mask is None else int((mask == 0).sum())
    if mask is None or not left_out:
        return ()
    return (
        f"attention_mask leaves out {left_out} of {mask.numel()} positions, and they count here like any "
        "other: give sequences without padding.",
    )


def _stream_note(trace: Trace) -> tuple[str, ...]:
    """What is measured where something lies between the blocks, as a skip around a branch."""
    if trace.contiguous:
        return ()
    found = (
        "Blocks of this model do not receive exactly what the one before returned, as where the model "
        "itself adds what a block returns to a residual stream. The reference and the credits are of what "
        "each block returns"
    )
    if trace.stream is None:
        return (
            f"{found}, and D1 is not applicable: what leaves the last block cannot be told. Name what "
            "receives it (out_ln=… or head=…), or put the skip into the block.",
        )
    return (f"{found}; D1 is of what each block receives, and of what the terminal norm or head does.",)


def _rule_words(rule: Rule) -> dict[str, str]:
    """`label`, `variant`, …: with its parameters and additions, where it was made from its name."""
    if rule.call is None:
        return {"label": rule.name, "name": rule.name, "variant": rule.name, "role": rule.role}
    return describe_rule(rule.call)


def _parts(blocks: Any) -> list[Any]:
    """Paths or modules, which may come one by one."""
    given = list(blocks) if isinstance(blocks, Iterable) else [blocks]
    if not all(isinstance(each, (str, nn.Module)) for each in given):
        raise BadInput(f"Blocks are paths or modules, not {blocks!r}.")
    return given


def _baseline_evidence(baseline: Baseline | None) -> Evidence | None:
    if baseline is None:
        return None
    if isinstance(baseline, store.Bundle):
        if baseline.card["rule"]["role"] != "baseline":
            raise BadInput(
                f"The bundle {baseline.path.name} is not a baseline.",
                'Make one with Bundle.from_model(…, role="baseline"), or train the rule frozen.',
            )
        check_frozen(baseline)
        rates = open_rates([baseline])
        return replace(evidence_of(baseline), rate_open=rates.get(baseline.path, ""))
    if isinstance(baseline, np.ndarray):
        baseline = np.atleast_1d(baseline).tolist()
    values: Sequence[Any] = baseline if isinstance(baseline, (list, tuple)) else [baseline]
    if not len(values):
        raise BadInput("The list of baseline accuracies is empty.")
    accuracies = [_as_accuracy(value, "baseline") for value in values]
    return Evidence("frozen", Measurements(), 0, role="baseline", accuracy=float(np.mean(accuracies)))


def _as_accuracy(value: float, name: str) -> float:
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float, np.number)):
        raise BadInput(f"{name} must be a number between 0 and 1, not {value!r}.")
    if not 0 <= float(value) <= 1:
        raise BadInput(f"{name} must be a share between 0 and 1, not {value}.", "Write 0.35 for 35 %.")
    return float(value)


def _block_hash(net: Adapter) -> str:
    """What tells whether two nets have the very same blocks; empty for blocks without weights."""
    weights = [_numpy(parameter) for parameter in net.block_parameters().values()]
    return hash_arrays(*weights) if weights else ""


def _never_frozen(net: Adapter) -> tuple[str, ...]:
    """Blocks that were frozen while they were trained round still are, where nobody has thawed them."""
    weights = net.block_parameters().values()
    if not weights or not all(parameter.requires_grad for parameter in weights):
        return ()
    return ("The blocks of the baseline are all trainable: were they frozen (freeze_blocks) in training?",)


def _batch_arrays(x: Batch, y: Tensor) -> dict[str, np.ndarray]:
    parts = {f"x/{name}": part for name, part in x.items()} if isinstance(x, Mapping) else {"x": x}
    return {name: _numpy(torch.as_tensor(part)) for name, part in {**parts, "y": y}.items()}


def _batch_hash(x: Batch, y: Tensor) -> str:
    return hash_arrays(*(array for _, array in sorted(_batch_arrays(x, y).items())))


def _state_arrays(protocol: FAProtocol) -> dict[str, np.ndarray]:
    state = {f"net/{name}": value for name, value in protocol.net.model.state_dict().items()}
    if protocol.rule is not None:
        state |= {f"rule/{name}": value for name, value in protocol.rule.state_dict().items()}
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        raise BadInput(
            f"The model keeps {odd[0].partition('/')[2]} beside its tensors, which no bundle can hold.",
            "Its get_extra_state returns it: leave it away for the audit.",
        )
    return {name: _numpy(value) for name, value in state.items()}


def _numpy(tensor: Tensor) -> np.ndarray:
    """As an array; bfloat16, which numpy lacks, as the float32 that holds the same values."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
