"""A Hugging Face ViT and a GPT-2, trained by DFA beside a twin with frozen blocks, and audited.

Run it with `python examples/huggingface.py`: half a minute, no download. It needs `walkback[transformers]`.
"""

import tempfile

import torch
from sklearn.datasets import load_digits
from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

from walkback import Bundle, FAProtocol, freeze_blocks
from walkback.nets import Adapter
from walkback.rules import make_rule


def vit():
    """Digits: one label per image, so every token of an image receives the same credit."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **sizes)
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    model = ViTForImageClassification(config)
    blocks = "vit.layers" if hasattr(model.vit, "layers") else "vit.encoder.layer"  # before version 5
    parts = {"blocks": blocks, "out_ln": "vit.layernorm", "head": "classifier"}
    return model, x, torch.tensor(digits.target), parts


def gpt2():
    """Five tokens, repeated: the token is the unit, and its label is the token that follows."""
    sizes = {"n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    config = GPT2Config(vocab_size=20, bos_token_id=0, eos_token_id=0, **sizes)
    tokens = torch.randint(20, (1500, 5)).repeat(1, 3)
    parts = {"blocks": "transformer.h", "out_ln": "transformer.ln_f", "head": "lm_head"}
    return GPT2LMHeadModel(config), tokens[:, :-1], tokens[:, 1:], parts


def train(model, x, y, parts, text, steps):
    """Any rule on any model: `deposit_gradients` stands where the loss and its backward pass would be."""
    net, rule = Adapter(model, **parts), make_rule(text)
    with net.evaluating():
        rule.setup(net.probe(x[:2], y[:2]), torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        optimizer.zero_grad()
        rule.deposit_gradients(net, x[rows], y[rows])
        optimizer.step()
    return rule


def audit(build, steps):
    torch.manual_seed(0)
    model, x, y, parts = build()
    torch.manual_seed(0)
    twin = freeze_blocks(build()[0], parts["blocks"])
    rule = train(model, x[:-300], y[:-300], parts, "dfa", steps)
    train(twin, x[:-300], y[:-300], parts, "bp", steps)
    with tempfile.TemporaryDirectory() as folder:
        test = x[-300:], y[-300:]
        frozen = Bundle.from_model(twin, *test, f"{folder}/frozen", role="baseline", **parts)
        return FAProtocol(model, *test, rule=rule, baseline=frozen, **parts).run()


def main(steps=150):
    verdicts = []
    for build in (vit, gpt2):
        verdicts.append(audit(build, steps))
        print(build.__name__, verdicts[-1])
        print("  cosines:", [round(layer["cosine"], 3) for layer in verdicts[-1]["layers"]])
    return verdicts


if __name__ == "__main__":
    main()
