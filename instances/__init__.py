"""What a problem and a plan are: records, files, importers, generators, library, checker."""
