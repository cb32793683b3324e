"""What a worker counts and measures, for Prometheus. docs/metrics.md says what each metric means.

Nothing here needs the library until metrics are asked for: `pip install 'seriatim[metrics]'`.
"""
