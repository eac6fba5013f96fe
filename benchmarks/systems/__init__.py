"""Systems under measurement: deployments and the baseline, their processes and folders."""
