"""Plan hosts: the processes that hold plan actors, and their connections to dispatchers."""
