"""Commands on a deployment: deploy, upgrade, drain, status, stop, nats-config."""
