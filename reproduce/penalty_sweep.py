"""Train block DFA with a penalty on its branches, and backprop with the same one as the control."""

import sys

from common import parser, train


def main() -> int:
    options = parser(__doc__ or "", epochs=30)
    options.add_argument("--lambdas", nargs="+", type=float, default=[0.0, 1e-4, 1e-2])
    given = options.parse_args()
    rules = [f"{rule}+penalty({weight:g})" for rule in ("dfa", "bp") for weight in given.lambdas]
    return train(given, [*rules, "frozen"])


if __name__ == "__main__":
    sys.exit(main())
