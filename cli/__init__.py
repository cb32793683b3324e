"""The `seriatim` command: a thin layer over core and compensation, one file per verb."""
