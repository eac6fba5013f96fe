"""What is measured: deployments and the baseline, their processes and folders."""
