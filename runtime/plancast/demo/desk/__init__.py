"""The demo of the support desk: the terminal of a customer, another agent, a manager's inbox, and a schedule."""
