"""`python -m fedbc` is the command line."""

from fedbc.cli import main

main()
