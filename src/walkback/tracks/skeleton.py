"""The file that `walkback verify --new` writes: a track that runs, to be changed line by line."""

from __future__ import annotations

import re
from pathlib import Path

from walkback.core.errors import BadInput
from walkback.store.files import write_atomic

SKELETON = '''"""A claim and the sabotages under which it must fail. Run it: walkback verify {file}"""

from __future__ import annotations

import numpy as np

from walkback.tracks import Control, Decision, Gate, Lab, Track

track = Track(
    id="{id}",
    name="{name}",
    claim="The gradient of softplus that is written out by hand is that of softplus.",
    purpose="Why anybody should care.",
    limits="What passing does not show.",
    improve="What would make the evidence stronger.",
    arms={{"by hand": "the formula on trial", "numerical": "central differences"}},
    # Gates say when the experiment means anything; if one is missed, the track is INCONCLUSIVE.
    gates=(Gate("range", "Largest absolute input", at_least=3),),
    # Decisions are the claim. Their bounds are fixed here, before any number is seen.
    decisions=(Decision("gradient", "Largest difference from the numerical gradient", at_most=1e-6),),
    # Each control breaks one thing. If the track still passes, it could not tell, and it is FAIL.
    controls=(
        Control("sign flip", "the gradient has the wrong sign"),
        Control("constant", "the gradient is one half everywhere, as it is at 0"),
        Control("easy inputs", "all inputs are 0, where even the constant is right"),
    ),
    level={{"quick": "smoke", "full": "directional"}},
    quick={{"points": 100}},
    full={{"points": 10_000}},
)


@track.experiment
def experiment(lab: Lab) -> None:
    """Compare the gradient that is written out with central differences at random inputs."""
    x = 2 * lab.rng("inputs").standard_normal(lab.settings["points"])
    if lab.under("easy inputs"):
        x = np.zeros_like(x)
    lab.report("range", float(np.abs(x).max()))
    apart = np.abs(gradient(lab, x) - numerical_gradient(x))
    lab.row(points=len(x), largest=float(apart.max()), mean=float(apart.mean()))
    lab.report("gradient", float(apart.max()))
    lab.tell(
        difference=f"By hand and numerical gradient differ by {{apart.max():.1e}} at most.",
        interpretation="The difference is the error of central differences.",
    )


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def gradient(lab: Lab, x: np.ndarray) -> np.ndarray:
    if lab.under("constant"):
        return np.full_like(x, 0.5)
    found = 1 / (1 + np.exp(-x))
    return -found if lab.under("sign flip") else found


def numerical_gradient(x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    return (softplus(x + step) - softplus(x - step)) / (2 * step)
'''


def write_skeleton(name: str) -> Path:
    """`NAME.py` with a track of that name; a file that exists is left alone."""
    path = Path(name if name.endswith(".py") else f"{name}.py")
    if not re.fullmatch(r"[A-Za-z]\w*([-.]\w+)*", path.stem):
        raise BadInput(f"{name!r} cannot be the name of a track.", "Use letters, digits and underscores.")
    if path.exists():
        raise BadInput(f"{path} exists already.", "Choose another name.")
    words = re.sub(r"[-_.]+", " ", path.stem)
    text = SKELETON.format(file=path, id=words.replace(" ", "-"), name=words.capitalize())
    write_atomic(path, text.encode("utf-8"))
    return path
