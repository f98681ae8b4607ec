"""A track of a coin, with every part open to change: what the tests of the harness toss."""

from __future__ import annotations

from walkback.tracks import Control, Decision, Gate, IdentityGate, Lab, PositiveControl, Track

SOURCE = '''
from walkback.tracks import Control, Decision, Lab, Track

track = Track(
    id="coin", name="A coin is fair", claim="Heads come up in half of all tosses.", purpose="p", limits="l",
    improve="i", arms={"coin": "numpy's"},
    decisions=[Decision("share", "Share of heads", at_least=0.45, at_most=0.55)],
    controls=[Control("loaded", "the coin is loaded"), Control("stuck", "every toss shows heads")],
    quick={"tosses": 10_000}, full={"tosses": 100_000},
)


@track.experiment
def toss(lab: Lab) -> None:
    """Toss a coin."""
    share = 1.0 if lab.under("stuck") else 0.7 if lab.under("loaded") else 0.5
    heads = lab.rng("tosses").random(lab.settings["tosses"]) < share
    lab.row(tosses=len(heads), heads=int(heads.sum()))
    lab.report("share", heads.mean())
'''


def coin(experiment=None, **changed) -> Track:
    """The coin's track, with other parts or another experiment."""
    declared = {
        "id": "coin",
        "name": "A coin is fair",
        "claim": "Heads come up in half of all tosses.",
        "purpose": "To have something to toss.",
        "limits": "One coin.",
        "improve": "More coins.",
        "arms": {"coin": "numpy's"},
        "gates": [Gate("tosses", "Tosses", at_least=100), IdentityGate("sides", "Sides", at_most=2)],
        "decisions": [Decision("share", "Share of heads", at_least=0.45, at_most=0.55)],
        "controls": [
            Control("loaded", "the coin is loaded"),
            Control("lost", "the coin is never tossed"),
        ],
        "positive": [PositiveControl("silver", "the coin is of silver")],
        "quick": {"tosses": 10_000},
        "full": {"tosses": 100_000},
    }
    track = Track(**{**declared, **changed})
    track.experiment(experiment or toss())
    return track


def toss(count=None, share=0.5, sides=2, loaded=0.7, silver=0.5, before=lambda lab: None):
    """An experiment; each argument is what the coin is like."""

    def experiment(lab: Lab) -> None:
        """Toss a coin and count heads."""
        before(lab)
        tosses = 0 if lab.under("lost") else count or lab.settings["tosses"]
        lab.report("tosses", tosses)
        lab.report("sides", sides)
        odds = loaded if lab.under("loaded") else silver if lab.under("silver") else share
        heads = lab.rng("tosses").random(tosses) < odds
        lab.row(tosses=tosses, heads=int(heads.sum()))
        lab.report("share", heads.mean())
        lab.tell(difference="A difference.", interpretation="An interpretation.")

    return experiment
