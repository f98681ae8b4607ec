"""The smallest script that audits a trained model: train two nets on digits, compare, read the verdict.

Run it with `python examples/example_usage.py`; it takes a few seconds and needs no data.
"""

import torch
from sklearn.datasets import load_digits

from walkback import Bundle, FAProtocol, freeze_blocks
from walkback.nets.resmlp import ResMLP


def train(model, x, y, epochs=60):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def main(folder="frozen-twin"):
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    x_train, y_train, x_test, y_test = x[:1297], y[:1297], x[1297:], y[1297:]

    torch.manual_seed(0)
    model = train(ResMLP(64, 10, depth=2, width=64), x_train, y_train)
    torch.manual_seed(0)
    twin = train(freeze_blocks(ResMLP(64, 10, depth=2, width=64)), x_train, y_train)

    baseline = Bundle.from_model(twin, x_test, y_test, folder, role="baseline")
    verdict = FAProtocol(model, x_test, y_test, rule="bp", baseline=baseline).run()
    print(verdict)
    return verdict


if __name__ == "__main__":
    main()
