"""The command line: `fairdraft generate`, `audit`, `bench` and `info`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    try:
        # a Ctrl-C may come while this is imported
        from fairdraft.cli.app import run

        code = run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130
    raise SystemExit(code)
