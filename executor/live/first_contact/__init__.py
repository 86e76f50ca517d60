"""First contact with a GPU: the checks that only hardware can settle, with full transcripts."""
