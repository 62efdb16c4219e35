"""Lets `python -m fairdraft` run the command line."""

from fairdraft.cli.app import main

main()
