"""A step of `bp` against a backprop step of plain torch on the same net."""

from harness import compare
from setting import PLAIN_TORCH, plain_step, resmlp, step

if __name__ == "__main__":
    ours, peer = step("bp", resmlp()), plain_step(resmlp())
    compare("backprop step / plain bp", ours, peer, goal=1.05, peer_name=PLAIN_TORCH)
