"""The command line: `fairdraft generate`, `fairdraft audit` and `fairdraft info`."""

from fairdraft.cli.app import main

__all__ = ["main"]
