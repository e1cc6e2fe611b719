#!/usr/bin/env python3
"""Runs a set of kernels, checks and times them: `flashsmith run`, with the same arguments."""

import sys

from flashsmith.cli.main import main

sys.argv[1:1] = ["run"]
main()
