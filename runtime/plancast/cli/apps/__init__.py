"""Commands on the code of an app: new, validate."""
