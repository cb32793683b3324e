"""Compensation: what is parked, why, and how it comes back without ever overtaking itself."""
