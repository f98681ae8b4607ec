"""`python -m walkback` is the `walkback` command."""

from walkback.cli.main import main

main()
