"""Plan actors: the mailbox, turns, commits and outbox of each plan."""
