"""Train the frozen-blocks baseline of diagnostic (d)."""

import sys

from common import parser, train

if __name__ == "__main__":
    sys.exit(train(parser(__doc__ or "", epochs=100).parse_args(), ["frozen"]))
