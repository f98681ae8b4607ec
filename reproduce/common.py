"""Shared by the wrappers: the artifact's options, translated into one `walkback train` command."""

from __future__ import annotations

import argparse
import shlex
import sys

from walkback.cli.main import run

ARCHITECTURES = {"resmlp": "resmlp"}


def parser(about: str, epochs: int) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=about)
    options.add_argument("--arch", default="resmlp", choices=sorted(ARCHITECTURES))
    options.add_argument("--seeds", nargs="+", type=int, default=[42, 123, 456])
    options.add_argument("--epochs", type=int, default=epochs)
    options.add_argument("--data", default="cifar10")
    options.add_argument("--data-dir")
    options.add_argument("--store", default="runs")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--dry-run", action="store_true", help="print the walkback command and stop")
    return options


def train(given: argparse.Namespace, rules: list[str]) -> int:
    command = ["train", "--net", ARCHITECTURES[given.arch], "--rules", ",".join(rules)]
    command += ["--seeds", ",".join(map(str, given.seeds)), "--epochs", str(given.epochs)]
    command += ["--data", given.data, "--store", given.store, "--workers", str(given.workers)]
    command += ["--data-dir", given.data_dir] if given.data_dir else []
    sys.stdout.write(f"walkback {shlex.join(command)}\n")
    sys.stdout.flush()
    return 0 if given.dry_run else run(command)
