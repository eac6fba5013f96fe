"""The console's server: an HTTP API over a deployment, and the pages that use nothing else."""
