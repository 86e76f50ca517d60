"""What all parts ask of the operating system: the clock, directories, descriptors, small files."""
