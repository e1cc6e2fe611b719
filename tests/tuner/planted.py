"""An evaluator with the planted compiler; imported by workers only, for it changes its process."""

from planted_faults import planted_compile

from flashsmith.runtime.run import prepare
from flashsmith.tuner.run.evaluate import evaluate

__all__ = ["evaluate"]

prepare.__kwdefaults__["compile_with"] = planted_compile
