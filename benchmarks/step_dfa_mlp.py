"""A step of `dfa(form=layer)` against a backprop step of plain torch on the same net."""

from harness import compare
from setting import PLAIN_TORCH, deep_mlp, plain_step, step

if __name__ == "__main__":
    ours, peer = step("dfa(form=layer)", deep_mlp()), plain_step(deep_mlp())
    compare("dfa layer step / plain bp, 16×512 MLP", ours, peer, goal=0.8, peer_name=PLAIN_TORCH)
