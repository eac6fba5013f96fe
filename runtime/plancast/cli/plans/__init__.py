"""Commands on plans: submit, list, show, history, replay, fork and steering."""
