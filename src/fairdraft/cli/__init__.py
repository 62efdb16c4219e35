"""The command line: `fairdraft generate`, `audit`, `bench` and `info`."""

from fairdraft.cli.app import main

__all__ = ["main"]
