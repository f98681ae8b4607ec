"""A light audit of one checkpoint against one forward and backward pass on the same 512 rows."""

from harness import compare
from setting import batch, plain_pass, ready, resmlp

from walkback.measure import measure_light

PEER = "forward + backward, N=512"


def audit(size, *, float64):
    (adapter, rule), (x, y) = ready("dfa", resmlp()), batch(size)

    def run():
        with adapter.evaluating():
            trace = adapter.probe(x, y)
            measure_light(trace, rule.credits(trace), 0, float64=float64)

    return run


if __name__ == "__main__":
    ours = audit(512, float64=False)
    compare("light audit / forward+backward", ours, plain_pass(512), goal=1.0, peer_name=PEER)
