"""Train the named methods, as the artifact's script of the same name does."""

import sys

from common import parser, train


def main() -> int:
    options = parser(__doc__ or "", epochs=100)
    options.add_argument("--methods", nargs="+", default=["bp", "fa", "dfa"])
    given = options.parse_args()
    # The artifact's FA is the block form; walkback's plain `fa` is Lillicrap's layer form.
    names = {"fa": "fa(form=block)"}
    return train(given, [names.get(method, method) for method in given.methods])


if __name__ == "__main__":
    sys.exit(main())
