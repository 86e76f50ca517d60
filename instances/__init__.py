"""Problems and plans: records, files, importers, generators, library, checker."""
