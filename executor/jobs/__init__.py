"""What a service knows of its jobs: specifications, the table of states, the journal."""
