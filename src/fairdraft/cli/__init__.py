"""The command line: `fairdraft generate` and `fairdraft info`."""

from fairdraft.cli.app import main

__all__ = ["main"]
