"""Operating system services for all parts: clock, directories, descriptors, small files."""
