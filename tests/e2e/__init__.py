"""End-to-end tests on one deployment. As a package this folder is a scope for fixtures: the deployment ends with it."""
