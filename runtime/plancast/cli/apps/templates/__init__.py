"""The projects that `plancast new` makes: files with ``${...}`` where the project's own names go."""
