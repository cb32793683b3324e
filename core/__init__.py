"""What is true of every broker: messages, routing, decisions, lanes, leases, records, the state machine, the store."""
