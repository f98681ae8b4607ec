"""What measuring the light tier once an epoch adds to an epoch: 390 steps and one audit of 512 rows."""

from harness import ratio_of, report
from light_audit import audit
from setting import step

STEPS = 390

if __name__ == "__main__":
    ratio, (low, high) = ratio_of(audit(512, float64=False), step("bp"))
    spread = 1 + low / STEPS, 1 + high / STEPS
    report("epoch with light tier / without", 1 + ratio / STEPS, spread, goal=1.005, peer="390 steps")
