"""`python -m flashsmith` is the command `flashsmith`."""

from flashsmith.cli.main import main

main()
