#!/usr/bin/env python3
"""Counters of a set by Nsight Compute: `flashsmith bench profile`, with the same arguments."""

import sys

from flashsmith.cli.main import main

sys.argv[1:1] = ["bench", "profile"]
main()
