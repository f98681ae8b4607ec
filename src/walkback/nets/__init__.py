"""The audited nets, and the adapter that audits any other. A new net is one file and one line here."""

from __future__ import annotations

from torch import nn

from walkback.core.registry import Registry
from walkback.core.spec import Call
from walkback.nets.adapter import Adapter as Adapter
from walkback.nets.adapter import freeze_blocks as freeze_blocks
from walkback.nets.trace import Trace as Trace

nets: Registry[type[nn.Module]] = Registry(
    "net",
    {
        "cnn": "walkback.nets.cnn:CNN",
        "hopfield": "walkback.nets.hopfield:HopfieldMLP",
        "looped": "walkback.nets.looped:LoopedMLP",
        "mlp": "walkback.nets.mlp:MLP",
        "near-identity": "walkback.nets.near_identity:NearIdentityMLP",
        "resmlp": "walkback.nets.resmlp:ResMLP",
        "small-resnet": "walkback.nets.small_resnet:SmallResNet",
        "student": "walkback.nets.student:StudentNet",
        "vit": "walkback.nets.vit:ViT",
    },
    base=nn.Module,
    needs=("defaults",),
)


def build_net(call: Call, features: int, classes: int) -> nn.Module:
    """The net a call names, for inputs of `features` numbers."""
    net = nets[call.name]
    return net(features, classes, **call.with_defaults(net.defaults, "net").params)  # type: ignore[attr-defined]
