"""Apps to read, run and take apart: ``plancast run examples.research:app``."""
