"""One file format, its writer and reader, and which tracker has what."""
