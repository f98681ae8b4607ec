"""Credit of a known quality: backprop's, turned by a given angle. The scale that rules are read against."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.core.errors import BadInput
from walkback.core.spec import Call
from walkback.core.streams import stream_seed
from walkback.nets.trace import Trace
from walkback.nets.wrappers import statistics_kept
from walkback.rules.base import Rule


class Dose(Rule):
    """`a_l = ‖g_l‖ (c ĝ_l + √(1 − c²) u_l)` for every row, u_l a unit vector at right angles to g_l.

    The cosine to backprop is exactly c at every layer and step, and so is the norm; only the noise
    differs. `noise=fresh`: u_l is drawn anew for every row and step, and averages out. `noise=fixed`: one
    direction per layer for all rows and all time, which does not.
    """

    name = "dose"
    citation = "credit dose–response, walkback"
    about = "backprop's credit turned away by a known angle"
    ours = "a calibration of the protocol, not a proposal: its credit is made from backprop's"
    wiring = "cut"
    has_feedback = False  # what it holds is noise beside the reference
    backprop_by_design = True
    reads_states = False
    defaults = {"cosine": 0.3, "noise": "fresh"}  # noqa: RUF012
    choices = {"noise": ("fresh", "fixed")}  # noqa: RUF012

    @classmethod
    def check_choices(cls, call: Call) -> None:
        super().check_choices(call)
        if not -1 <= float(call.params["cosine"]) <= 1:
            raise BadInput(f"A cosine lies in −1…1, not {call.params['cosine']}.")

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        if self.params["noise"] == "fixed":
            for layer, h in enumerate(trace.states):
                drawn = torch.randn(h.shape[1:], generator=generator, dtype=torch.float64)
                self.register_buffer(f"direction_{layer}", drawn.to(h))

    @property
    def ready(self) -> bool:
        return self.params["noise"] == "fresh" or any(True for _ in self.buffers())

    def credits(self, trace: Trace) -> list[Tensor]:
        """The same noise whenever a checkpoint is measured, so that a measurement can be repeated."""
        generator = torch.Generator().manual_seed(stream_seed(0, "dose", "diagnosis"))
        return self._turn(trace, generator)

    def training_credits(self, trace: Trace) -> list[Tensor]:
        with statistics_kept(trace.net.model):
            return self._turn(trace.net.trace(trace.inputs, trace.labels, "probe"), None)

    def _turn(self, trace: Trace, generator: torch.Generator | None) -> list[Tensor]:
        """Without a generator the noise comes from torch's own stream, which training seeds each epoch."""
        return [self._turned(layer, g, trace, generator) for layer, g in enumerate(trace.reference)]

    def _turned(self, layer: int, g: Tensor, trace: Trace, generator: torch.Generator | None) -> Tensor:
        rows = trace.rows(g)
        if self.params["noise"] == "fixed":
            noise = trace.rows(self.get_buffer(f"direction_{layer}").to(g).expand_as(g))
        else:
            noise = torch.randn(rows.shape, generator=generator, dtype=rows.dtype).to(rows.device)
        return turn(rows, noise, float(self.params["cosine"])).view_as(g)


def turn(rows: Tensor, noise: Tensor, cosine: float) -> Tensor:
    """Every row turned towards its noise until its cosine to itself is this one; its length stays."""
    unit = _unit(rows)
    across = _unit(noise - (noise * unit).sum(1, keepdim=True) * unit)
    turned = cosine * unit + (1 - cosine**2) ** 0.5 * across
    largest = rows.abs().amax(dim=1, keepdim=True)
    size = largest / unit.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)  # ‖g‖ without squaring it
    return size * turned


def _unit(rows: Tensor) -> Tensor:
    """Rows of length one, from any scale a float can hold; a zero row stays zero."""
    largest = rows.abs().amax(dim=1, keepdim=True)
    scaled = rows / torch.where(largest > 0, largest, 1.0)
    return scaled / torch.where(largest > 0, torch.linalg.vector_norm(scaled, dim=1, keepdim=True), 1.0)
