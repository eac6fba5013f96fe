"""Errors of the bus.

PlancastError                 root of every error that plancast raises
└── BusError                  any failure of the bus or the checkpoint store
    ├── NatsServerError       an embedded nats-server does not start or does not answer
    ├── UnsupportedServer     a nats-server lacks what plancast needs (JetStream, version)
    ├── BusUnavailable        no connection, or no answer in time
    │   └── AccessDenied      the permissions of this user do not allow it
    ├── InvalidEnvelope       bytes or fields are not an event envelope
    │   └── UnreadableCheckpoint  no stored checkpoint of a plan was written by this deployment
    ├── InvalidSubject        a subject is not `<prefix>.<topic>.<correlation id>.<event type>`
    ├── PayloadTooLarge       a message exceeds the configured or the server's limit
    ├── PublishRefused        a stream is full, or no stream takes the subject
    ├── CommitConflict        another writer has committed a checkpoint of this plan
    ├── InvalidBackup         a folder holds no complete backup that fits this deployment
    ├── DeploymentExists      a backup would be restored over a deployment
    ├── BeingRestored         a backup is being restored; nothing may run on half of it
    └── DeadLetterNotFound    no dead letter has this number
"""


class PlancastError(Exception):
    """Root of every error that plancast raises."""


class BusError(PlancastError):
    """Raised for any failure of the bus or the checkpoint store."""


class NatsServerError(BusError):
    """Raised when an embedded nats-server does not start, or stops answering."""


class UnsupportedServer(BusError):
    """Raised at connect when the nats-server is too old or runs without JetStream."""


class BusUnavailable(BusError):
    """Raised when there is no connection to the bus, or it does not answer in time."""


class AccessDenied(BusUnavailable):
    """Raised when the permissions of this user on the nats-server do not allow the operation."""


class InvalidEnvelope(BusError, ValueError):
    """Raised when bytes or fields are not an event envelope; the message names the field."""


class UnreadableCheckpoint(InvalidEnvelope):
    """Raised when a plan has stored checkpoints, and none was written by this deployment."""


class UnreadableValue(InvalidEnvelope):
    """Raised when a value that a plan refers to is missing or damaged; the message names its digest."""


class InvalidSubject(BusError, ValueError):
    """Raised when a subject or one of its parts cannot carry an event."""


class PayloadTooLarge(BusError, ValueError):
    """Raised when a message is larger than the configured or the server's limit."""


class PublishRefused(BusError):
    """Raised when a stream refuses a message: it is full, or no stream takes its subject."""


class CommitConflict(BusError):
    """Raised when another writer committed a checkpoint since this one was loaded."""


class InvalidBackup(BusError, ValueError):
    """Raised when a folder holds no complete backup, or one that does not fit; the message names the file."""


class DeploymentExists(BusError):
    """Raised when a backup would be restored over the streams of a deployment."""


class BeingRestored(BusError):
    """Raised when the streams of a deployment are being restored from a backup."""


class DeadLetterNotFound(BusError, KeyError):
    """Raised when no dead letter has the given number."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else "no such dead letter"
