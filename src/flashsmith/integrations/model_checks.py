"""What flashsmith lacks for a model, told when it is made: before weights are loaded."""

from __future__ import annotations

from flashsmith.api.notices import say_once
from flashsmith.base.errors import Unsupported
from flashsmith.base.loose_types import Foreign
from flashsmith.kernels.width import MAX_D_HEAD, MAX_TRAINED_D_HEAD, too_wide

_without_sdpa: set[type] = set()  # classes of configurations whose models refuse it
NO_WEIGHTS = (
    "flashsmith never holds the weights of attention; leave it out, or use "
    'attn_implementation="eager"'
)
_DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop")


def remember(model: Foreign) -> None:
    """Keeps what advice to a model may name."""
    if not getattr(model, "_supports_sdpa", True):
        _without_sdpa.add(type(model.config))


def instead(module: Foreign) -> str:
    """An implementation that the model takes."""
    name = "eager" if type(getattr(module, "config", None)) in _without_sdpa else "sdpa"
    return f'use attn_implementation="{name}"'


def _around(module: Foreign) -> str:
    """The same, and how flashsmith gets what such a model asks of torch."""
    found = instead(module)
    is_torchs = found.endswith('"sdpa"')
    return f"{found} inside of flashsmith.integrations.torch.sdpa()" if is_torchs else found


def check_model(model: Foreign) -> None:
    """Raises for a model that flashsmith cannot run; says what it cannot do with another."""
    name, config = type(model).__name__, model.config
    can_set = getattr(model, "_can_set_attn_implementation", None)
    if can_set is not None and not can_set():
        raise Unsupported(
            f"{name} computes attention in its own code, not through transformers' interface; "
            f"flashsmith cannot take its place; {_around(model)}."
        )
    if getattr(config, "output_attentions", False):
        raise Unsupported(f"{name} has output_attentions=True in its configuration; {NO_WEIGHTS}.")
    width = _width_of(config)
    if width > MAX_D_HEAD:
        raise Unsupported(
            f"{name} has heads of {width}; the kernels take d_head up to {MAX_D_HEAD}; "
            f"{too_wide(width)}{instead(model)}."
        )
    if width > MAX_TRAINED_D_HEAD:
        say_once(
            f"{name} {width}",
            f"{name} has heads of {width}; flashsmith has gradients up to {MAX_TRAINED_D_HEAD}, so "
            f"training steps will be refused. Inference is not affected.",
        )
    for dropout in _DROPOUTS:
        if getattr(config, dropout, 0) or 0:
            say_once(
                f"{name} {dropout}",
                f"{name} has {dropout}={getattr(config, dropout)} in its configuration; flashsmith "
                f"has no dropout, so training steps will be refused: set it to 0.0 to train. "
                f"Inference is not affected.",
            )


def _width_of(config: Foreign) -> int:
    """The d_head that a configuration tells; 0 where it does not."""
    width = getattr(config, "qk_head_dim", None) or getattr(config, "head_dim", None)
    if isinstance(width, int):
        return width
    size, heads = (getattr(config, n, None) for n in ("hidden_size", "num_attention_heads"))
    return size // heads if isinstance(size, int) and isinstance(heads, int) and heads else 0
