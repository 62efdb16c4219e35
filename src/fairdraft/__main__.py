"""Lets `python -m fairdraft` run the command line."""

from fairdraft.cli import main

main()
