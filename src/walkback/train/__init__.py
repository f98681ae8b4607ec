"""The training loop: one for every rule, resumable to the bit."""

from walkback.train.loop import Divergence as Divergence
from walkback.train.loop import Progress as Progress
from walkback.train.loop import Recipe as Recipe
from walkback.train.loop import TrainState as TrainState
from walkback.train.loop import train as train
