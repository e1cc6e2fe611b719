"""Search of a whole family's space, too large to measure, by Optuna's ask and tell.

It starts from given configurations, best predicted first. What Optuna asks for and cannot be built
is led back, knob by knob, to a configuration that can: what is measured, and told, is that one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from flashsmith.base.errors import Unsupported
from flashsmith.base.fields import Knob, value_text
from flashsmith.base.loose_types import Foreign, KnobValue, OptionalModule
from flashsmith.kernels.kernel import KernelConfig

AT_ONCE = 8  # configurations asked for together: compiled side by side, then measured
_ASKS_A_TRIAL = 20  # what was asked for before is not measured again; a small space runs dry
_FIXED = ("dtype", "d_head")  # the problem decides them
_FAMILY = "family"
Trial = Foreign  # Optuna's

Measure = Callable[[Sequence[KernelConfig]], Mapping[KernelConfig, float | None]]


def search(
    start: Sequence[KernelConfig],
    measure: Measure,
    is_legal: Callable[[KernelConfig], bool],
    *,
    trials: int,
    is_over: Callable[[], bool] = lambda: False,
    seed: int = 0,
) -> dict[KernelConfig, float | None]:
    """Measures `trials` configurations at most, each once; their times, None where it has none.

    The same seed and the same times give the same configurations: a run that was interrupted asks
    for the same ones again, and finds them in the store.
    """
    space = _Space(start, is_legal)
    optuna = _import_optuna()
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    known: dict[KernelConfig, float | None] = {}
    first = list(start[:trials])
    asked = 0
    while len(known) < trials and asked < _ASKS_A_TRIAL * trials and not is_over():
        batch: list[KernelConfig] = []
        while len(batch) < min(AT_ONCE, trials - len(known)) and asked < _ASKS_A_TRIAL * trials:
            asked += 1
            config = first.pop(0) if first else space.asked(study.ask(space.distributions(optuna)))
            if config not in known and config not in batch:
                batch.append(config)
        for config, time_us in measure(batch).items():
            known[config] = time_us
            study.add_trial(space.trial(optuna, config, time_us))
    return known


class _Space:
    """The knobs of the families of some configurations, as Optuna sees them."""

    def __init__(
        self, start: Sequence[KernelConfig], is_legal: Callable[[KernelConfig], bool]
    ) -> None:
        self._models: dict[str, KernelConfig] = {}  # the best start of each family
        for config in start:
            self._models.setdefault(config.NAME, config)
        self._is_legal = is_legal
        self._random = random.Random(0)

    def distributions(self, optuna: OptionalModule) -> dict[str, Foreign]:
        """Every knob of every family, by its values' texts."""
        choice = optuna.distributions.CategoricalDistribution
        found = {_FAMILY: choice(tuple(self._models))}
        for family, model in self._models.items():
            for name, knob in _free_knobs(model).items():
                found[f"{family}.{name}"] = choice(tuple(value_text(v) for v in knob.values))
        return found

    def asked(self, trial: Trial) -> KernelConfig:
        """The configuration of a trial, or the nearest way back to one that can be built."""
        model = self._models[trial.params[_FAMILY]]
        chosen: dict[str, KnobValue] = {}
        for name, knob in _free_knobs(model).items():
            text = trial.params[f"{model.NAME}.{name}"]
            chosen[name] = next(v for v in knob.values if value_text(v) == text)
        names = [name for name in chosen if chosen[name] != getattr(model, name)]
        self._random.shuffle(names)
        config = model.replace(**chosen)
        while names and not self._is_legal(config):
            name = names.pop()
            config = config.replace(**{name: getattr(model, name)})
        return config

    def trial(self, optuna: OptionalModule, config: KernelConfig, time_us: float | None) -> Trial:
        """What was measured, as Optuna is told."""
        own = {
            f"{config.NAME}.{name}": value_text(getattr(config, name))
            for name in _free_knobs(config)
        }
        params = {_FAMILY: config.NAME, **own}
        known = self.distributions(optuna)
        state = optuna.trial.TrialState
        return optuna.trial.create_trial(
            params=params,
            distributions={name: known[name] for name in params},
            value=time_us,
            state=state.COMPLETE if time_us is not None else state.FAIL,
        )


def _free_knobs(config: KernelConfig) -> dict[str, Knob]:
    return {name: knob for name, knob in config.knobs().items() if name not in _FIXED}


def _import_optuna() -> OptionalModule:
    try:
        import optuna
    except ImportError as error:
        raise Unsupported(
            "--search optuna needs Optuna, which is not installed; run pip install "
            "'flashsmith[tune]'."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
