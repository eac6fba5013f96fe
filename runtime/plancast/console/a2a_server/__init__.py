"""A deployment as an A2A agent: goals are skills, plans are tasks, and a wait is input that is required."""
