"""What the proofs share: processes that are killed (`killing`), databases of a run's own, and a trial's verdict."""
