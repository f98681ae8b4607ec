"""A step of `dfa(form=layer)` against a backprop step of plain torch on the same net."""

from harness import compare
from setting import PLAIN_TORCH, plain_step, resmlp, step

if __name__ == "__main__":
    ours, peer = step("dfa(form=layer)", resmlp()), plain_step(resmlp())
    compare("dfa layer step / plain bp", ours, peer, goal=0.95, peer_name=PLAIN_TORCH)
