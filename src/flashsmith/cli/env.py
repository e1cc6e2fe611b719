"""`flashsmith env`."""


def command() -> None:
    """Say what is installed here, and what is missing for what."""
