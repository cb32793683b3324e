"""The store: records, parked messages, leases and positions, in the database of the business tables."""
