#!/usr/bin/env python3
"""Writes the static registry as C++: `flashsmith build registry`, with the same arguments."""

import sys

from flashsmith.cli.main import main

sys.argv[1:1] = ["build", "registry"]
main()
