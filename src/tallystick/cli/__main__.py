"""`python -m tallystick.cli`: how `tally up` starts its two processes."""

from tallystick.cli.main import main

main()
