"""Plan hosts: mailboxes, turns, activation, commit and outbox of plan actors."""
