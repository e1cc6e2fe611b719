#!/usr/bin/env python3
"""Times beside torch and other peers: `flashsmith bench`, with the same arguments."""

import sys

from flashsmith.cli.main import main

sys.argv[1:1] = ["bench"]
main()
