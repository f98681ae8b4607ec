"""A step of `dfa` against a backprop step of plain torch on the same net."""

from harness import compare
from setting import PLAIN_TORCH, plain_step, resmlp, step

if __name__ == "__main__":
    ours, peer = step("dfa", resmlp()), plain_step(resmlp())
    compare("dfa block step / plain bp", ours, peer, goal=1.0, peer_name=PLAIN_TORCH)
