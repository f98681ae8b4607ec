"""An epoch of the demo grid's 20 MLPs stacked, against the same epoch by plain torch, net after net."""

import torch
from harness import compare
from torch.nn.functional import cross_entropy

from walkback.studies.stacked import Population, batch_rows, make_mlp, train_stacked

NETS, STEPS, BATCH, WIDTHS, ITEMS = 20, 8, 128, (20, 64, 64, 2), 1024
PEER = "plain torch, one by one (fused Adam)"


def setting():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ITEMS, WIDTHS[0], generator=generator)
    y = torch.randint(WIDTHS[-1], (ITEMS,), generator=generator)
    order = torch.stack([batch_rows(seed, torch.arange(ITEMS), BATCH, STEPS) for seed in range(NETS)])
    return x, y, order, [make_mlp(WIDTHS, seed) for seed in range(NETS)]


def stacked():
    x, y, order, nets = setting()
    population, labels = Population(nets, [1e-3] * NETS, [1e-4] * NETS), y.repeat(NETS, 1)
    return lambda: train_stacked(population, x, labels, order)


def one_by_one():
    x, y, order, nets = setting()
    adams = [torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4, fused=True) for net in nets]

    def run():
        for net, adam, steps in zip(nets, adams, order, strict=True):
            for rows in steps:
                adam.zero_grad(set_to_none=True)
                cross_entropy(net(x[rows]), y[rows]).backward()
                adam.step()

    return run


if __name__ == "__main__":
    compare("20 small nets stacked / one by one", stacked(), one_by_one(), goal=0.35, peer_name=PEER)
