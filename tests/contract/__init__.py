"""The contract suites: the same behaviours for every implementation of a port. They ship, for adapters of others."""
