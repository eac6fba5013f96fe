"""Routes whose requests prove themselves by a signature, and need no token: webhooks, and links that answer."""
