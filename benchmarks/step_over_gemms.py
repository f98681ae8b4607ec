"""A backprop step of the loop against its own matrix products."""

from harness import compare
from setting import gemms, step

if __name__ == "__main__":
    compare("training step / its GEMMs", step("bp"), gemms(), goal=1.4, peer_name="torch.mm with out=")
