"""The same with the reference measured again in float64."""

from harness import compare
from light_audit import PEER, audit
from setting import plain_pass

if __name__ == "__main__":
    ours = audit(512, float64=True)
    compare("light audit with float64", ours, plain_pass(512), goal=2.5, peer_name=PEER)
