"""Errors of the bus.

PlancastError                 root of every error that plancast raises
└── BusError                  anything the bus or the checkpoint store reports
    ├── NatsServerError       an embedded nats-server does not start or does not answer
    ├── UnsupportedServer     a nats-server lacks what plancast needs (JetStream, version)
    ├── BusUnavailable        no connection, or no answer in time
    │   └── AccessDenied      the server does not let this user do it
    ├── InvalidEnvelope       bytes or fields that are no event envelope
    │   └── UnreadableCheckpoint  no stored checkpoint of a plan is one that plancast has written
    ├── InvalidSubject        a subject that is not `<prefix>.<topic>.<correlation id>.<event type>`
    ├── PayloadTooLarge       a message over the configured or the server's limit
    ├── PublishRefused        the stream refused a message (it is full, or no stream takes the subject)
    ├── CommitConflict        someone else has committed a checkpoint of this plan meanwhile
    └── DeadLetterNotFound    no dead letter has this number
"""


class PlancastError(Exception):
    """Root of every error that plancast raises."""


class BusError(PlancastError):
    """Raised for anything the bus or the checkpoint store reports."""


class NatsServerError(BusError):
    """Raised when an embedded nats-server does not start, or stops answering."""


class UnsupportedServer(BusError):
    """Raised at connect when the nats-server is too old or runs without JetStream."""


class BusUnavailable(BusError):
    """Raised when there is no connection to the bus, or it does not answer in time."""


class AccessDenied(BusUnavailable):
    """Raised when the permissions of this user on the nats-server do not allow what was asked."""


class InvalidEnvelope(BusError, ValueError):
    """Raised when bytes or fields are no event envelope; the message names the field."""


class UnreadableCheckpoint(InvalidEnvelope):
    """Raised when a plan has stored checkpoints, and none of them is one that this deployment has written."""


class InvalidSubject(BusError, ValueError):
    """Raised when a subject or one of its parts cannot carry an event."""


class PayloadTooLarge(BusError, ValueError):
    """Raised when a message is larger than the configured or the server's limit."""


class PublishRefused(BusError):
    """Raised when a stream refuses a message: it is full, or no stream takes its subject."""


class CommitConflict(BusError):
    """Raised when a checkpoint was committed by someone else since it was loaded."""


class DeadLetterNotFound(BusError, KeyError):
    """Raised when no dead letter has the given number."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else "no such dead letter"
