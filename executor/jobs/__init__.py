"""Jobs of live mode: their specifications, states and transitions, and the journal."""
