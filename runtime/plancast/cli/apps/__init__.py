"""Commands on an app's code: new, validate."""
