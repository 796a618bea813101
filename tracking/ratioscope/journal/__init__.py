"""Journal: its file format, writer and reader, and the record of which tracker has received what."""
