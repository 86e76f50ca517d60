"""Programs that make a release; no part of the package."""
