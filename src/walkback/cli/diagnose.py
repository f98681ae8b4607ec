"""`walkback diagnose`: the verdict on stored bundles, or on a model of one's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walkback.cli.output import Json, Logic, emit_json, stdout_console
from walkback.core.errors import BadInput
from walkback.core.outside import stdout_kept

if TYPE_CHECKING:
    from walkback.core.verdict import Verdict
    from walkback.store import Bundle

EXAMPLE = (
    "Examples: walkback diagnose runs/resmlp-dfa-s42-*  |  "
    "walkback diagnose --model my_nets:build --weights w.safetensors --eval batch.npz --baseline 0.349"
)


def diagnose(
    bundles: Annotated[
        list[Path] | None, typer.Argument(help="Bundles; seeds of one rule count together.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Bundle, store, or accuracy. Default: frozen sibling.")
    ] = None,
    logic: Logic = "artifact",
    model: Annotated[
        str | None, typer.Option("--model", help="pkg:factory that returns the model.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", help=".safetensors, or .pt of tensors.")
    ] = None,
    eval_batch: Annotated[
        Path | None, typer.Option("--eval", help=".npz with y and x, or with y and inputs by name.")
    ] = None,
    blocks: Annotated[str | None, typer.Option("--blocks", help="Path of the blocks in the model.")] = None,
    head: Annotated[str | None, typer.Option("--head", help="Path of the head in the model.")] = None,
    out_ln: Annotated[str | None, typer.Option("--out-ln", help="Path of the terminal norm.")] = None,
    accuracy: Annotated[float | None, typer.Option("--accuracy", help="On the full test split.")] = None,
    json: Json = False,
) -> int:
    """Judge stored bundles, or measure and judge a model of your own.

    The exit code is the outcome: 0 pass, 1 fail, 2 bad input, 3 incomplete or inconclusive.
    """
    from walkback.core.verdict import worst

    if (model is None) == (not bundles):
        raise BadInput("Give bundles to judge, or --model with --eval.", "See walkback diagnose --help.")
    if model is None:
        own: dict[str, Any] = {
            "--weights": weights,
            "--eval": eval_batch,
            "--blocks": blocks,
            "--head": head,
        }
        own |= {"--out-ln": out_ln, "--accuracy": accuracy}
        unused = [name for name, value in own.items() if value is not None]
        if unused:
            raise BadInput(f"{', '.join(unused)} goes with --model, not with bundles.")
        verdicts = judge_stored(bundles or [], baseline, logic)
    else:
        parts: dict[str, Any] = {"blocks": blocks, "head": head, "out_ln": out_ln}
        verdicts = [judge_model(model, weights, eval_batch, baseline, logic, accuracy, parts)]
    rules = [verdict for verdict in verdicts if verdict.verdict != "BASELINE"]
    outcome = worst(verdict.outcome for verdict in rules or verdicts)
    if json:
        several = {"outcome": outcome, "verdicts": verdicts}
        emit_json(verdicts[0] if len(verdicts) == 1 else several)
    else:
        from walkback.report.terminal import print_verdict

        for verdict in verdicts:
            print_verdict(verdict, stdout_console())
    return outcome.exit_code


def judge_stored(paths: list[Path], baseline: str | None, logic: str) -> list[Verdict]:
    """Verdicts from stored measurements alone: no torch, no data set."""
    from walkback.judge.assemble import judge_bundles
    from walkback.store import Bundle

    opened = [Bundle.open(path) for path in paths]
    for bundle in opened:
        bundle.verify()
    baselines = None if baseline is None else _baseline_bundles(baseline)
    return [item.verdict for item in judge_bundles(opened, baselines, logic=logic)]


def judge_model(
    model: str,
    weights: Path | None,
    eval_batch: Path | None,
    baseline: str | None,
    logic: str,
    accuracy: float | None,
    parts: dict[str, Any],
) -> Verdict:
    import torch

    from walkback.data.npz import read_batch
    from walkback.protocol import FAProtocol

    if eval_batch is None:
        raise BadInput("--model needs --eval, an .npz file with x and y.")
    inputs, labels = read_batch(str(eval_batch))
    named = {name: torch.from_numpy(array) for name, array in inputs.items()}
    x, y = named["x"] if set(named) == {"x"} else named, torch.from_numpy(labels)
    against: Any = baseline
    if baseline is not None:
        against = _number(baseline)
        if against is None:
            found = _baseline_bundles(baseline)
            if len(found) != 1:
                raise BadInput(f"{baseline} holds {len(found)} baselines; one is needed.", "Name a bundle.")
            against = found[0]
    with stdout_kept():
        net = load_model(model, weights)
        return FAProtocol(net, x, y, baseline=against, accuracy=accuracy, logic=logic, **parts).run()


def load_model(name: str, weights: Path | None) -> Any:
    """The module a factory returns, with weights from a file that holds tensors and no code."""
    from importlib import import_module

    from torch import nn

    module_name, _, attribute = name.partition(":")
    if not attribute or not module_name:
        raise BadInput(f"--model takes pkg:factory, not {name!r}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(import_module(module_name), attribute)
        model = factory if isinstance(factory, nn.Module) else factory()
    except (ImportError, AttributeError) as error:
        raise BadInput(f"The model {name!r} cannot be imported: {error}.") from None
    except (Exception, SystemExit) as error:  # a script that ends by sys.exit(0) would read as a pass
        raise BadInput(f"{name} failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not isinstance(model, nn.Module):
        raise BadInput(f"{name} returned {type(model).__name__}, not a torch module.")
    if weights is not None:
        _load_weights(model, weights)
    return model


def _load_weights(model: Any, path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    if not path.is_file():
        raise BadInput(f"There is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a file that is no torch file fails in many ways, some with unsafe advice
        raise BadInput(
            f"The weights {path} cannot be read: no .safetensors file, nor a torch file of tensors alone.",
            "Save them with safetensors.torch.save_file(model.state_dict(), …).",
        ) from None
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise BadInput(f"The weights {path} are not tensors by name.", "Save model.state_dict().")
    try:
        _fill(model, state)
    except (RuntimeError, TypeError, AttributeError) as error:
        told = " ".join(line.strip() for line in str(error).splitlines()[:2])
        raise BadInput(f"The weights {path} do not fit: {told}") from None


def _fill(model: Any, state: Mapping[str, Any]) -> None:
    """Load every weight, whether or not a wrapper had added its prefix when it was saved.

    A file may leave out a name of a weight that has two, as an embedding that is tied to the head.
    """
    own = {_bare(name): name for name in model.state_dict()}
    given = {own.get(_bare(name), name): value for name, value in state.items()}
    held = {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    filled = {held[name] for name in given if name in held}
    missing, unexpected = model.load_state_dict(given, strict=False)
    wrong = [name for name in missing if held[name] not in filled] + unexpected
    if wrong:
        raise RuntimeError(f"{wrong[0]} is in only one of the model and the file.")


def _bare(name: str) -> str:
    """Without what torch.compile and data parallelism write into a name."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _baseline_bundles(text: str) -> list[Bundle]:
    from walkback.store import Bundle, Store
    from walkback.store.bundle import MANIFEST

    if _number(text) is not None:
        raise BadInput(
            "An accuracy as --baseline goes with --model.", "For bundles, name a bundle or store."
        )
    path = Path(text)
    if (path / MANIFEST).is_file():
        found = [Bundle.open(path)]
    else:
        stored = Store.existing(path).bundles()
        found = [bundle for bundle in stored if bundle.card["rule"]["role"] == "baseline"]
    for bundle in found:
        bundle.verify()
    if not found or any(bundle.card["rule"]["role"] != "baseline" for bundle in found):
        raise BadInput(f"{text} holds no baseline.", "Train one: walkback train --rules frozen.")
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
