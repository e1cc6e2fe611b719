"""The environment in which a worker finds the evaluators of this folder."""

import os
from pathlib import Path

_PATHS = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
# What is there already stays: on a machine without an installation it is where flashsmith is.
HERE = {"PYTHONPATH": os.pathsep.join(path for path in _PATHS if path)}
