"""A backprop step of the loop against its own matrix products, and DFA's against plain torch backprop."""

from harness import compare
from setting import batch, gemms, net, step
from torch import optim
from torch.nn.functional import cross_entropy


def plain_torch():
    adapter, (x, y) = net(), batch()
    model = adapter.model
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def run():
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


if __name__ == "__main__":
    compare("training step / its GEMMs", step("bp"), gemms(), goal=1.4, peer_name="torch.mm with out=")
    compare("backprop step / plain torch", step("bp"), plain_torch(), goal=1.05, peer_name="plain torch")
    compare(
        "dfa block step / plain torch bp", step("dfa"), plain_torch(), goal=1.0, peer_name="plain torch"
    )
    compare(
        "dfa layer step / plain torch bp",
        step("dfa(form=layer)"),
        plain_torch(),
        goal=0.95,
        peer_name="plain torch",
    )
