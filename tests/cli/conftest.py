"""The command line needs typer and rich; a GPU machine's own Python may lack them."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("typer") and find_spec("rich") else ["test_*.py"]
