"""Steps of `bp` and `dfa` on the image nets against plain torch backprop with maps in its usual order."""

from dataclasses import dataclass

import torch
from harness import compare
from setting import CLASSES, FEATURES, plain_step, step

from walkback.nets.cnn import CNN
from walkback.nets.images import ImageShape
from walkback.nets.small_resnet import SmallResNet

# Set after first readings, as guards: they predicted nothing.
GOALS = {"bp": 0.95, "dfa": 0.85}


@dataclass(frozen=True)
class UsualOrder(ImageShape):
    def read(self, x):
        return x.reshape(len(x), self.channels, self.size, self.size)


def made(kind, image=ImageShape):
    torch.manual_seed(0)
    net = kind(FEATURES, CLASSES)
    net.image = image(net.image.channels, net.image.size)
    return net


if __name__ == "__main__":
    for kind in (CNN, SmallResNet):
        peer = plain_step(made(kind, UsualOrder))
        for rule, goal in GOALS.items():
            compare(
                f"{rule} step / plain bp, {kind.__name__}",
                step(rule, made(kind)),
                peer,
                goal=goal,
                peer_name="plain torch backprop, maps in torch's usual order",
                rounds=15,
                warm=2,
            )
