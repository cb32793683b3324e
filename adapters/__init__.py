"""One module or folder per broker, each implementing `seriatim.core.broker` and nothing else."""
