"""The agent's card: what a client learns before it sends a message."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from plancast.a2a_client.values import JSON, TEXT, struct_of
from plancast.agents.definitions import EventDefinition
from plancast.console.service.backend import Backend
from plancast.json_values.normalize import plain

PROTOCOL: Final = "1.0"
SCHEMAS: Final = "urn:plancast:goal-schemas:1"
"""URI of the extension whose parameters are the schemas of the goals' data, by skill."""
BEARER: Final = "bearer"


async def card_of(backend: Backend, url: str, tenant: str, *, with_skills: bool, pushes: bool) -> AgentCard:
    """The card.

    Args:
        backend: The deployment.
        url: Where the agent takes requests.
        tenant: Tenant that requests have to name; empty: any.
        with_skills: Show what is deployed, which is for users with a token.
        pushes: Events can be sent to URLs of clients.
    """
    goals = await backend.goals() if with_skills else {}
    schemas = {name: plain(each.payload_schema) for name, each in goals.items() if each.payload_schema is not None}
    extension = AgentExtension(
        uri=SCHEMAS, description="JSON Schemas of the data of each skill.", params=struct_of(schemas)
    )
    return AgentCard(
        name="plancast",
        description="Runs durable plans: each skill is a goal, each task a plan. A message names its skill in "
        'metadata["skill"]; its data part is the goal\'s data.',
        version=version("plancast"),
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=PROTOCOL, tenant=tenant)
        ],
        capabilities=AgentCapabilities(
            streaming=True, push_notifications=pushes, extended_agent_card=True, extensions=[extension]
        ),
        security_schemes={
            BEARER: SecurityScheme(
                http_auth_security_scheme=HTTPAuthSecurityScheme(
                    scheme=BEARER, description="A token of the console's users."
                )
            )
        },
        security_requirements=[SecurityRequirement(schemes={BEARER: StringList()})],
        default_input_modes=[JSON, TEXT],
        default_output_modes=[JSON, TEXT],
        skills=list(map(_skill, goals.values())),
    )


def _skill(goal: EventDefinition) -> AgentSkill:
    return AgentSkill(
        id=goal.event_type,
        name=goal.event_type,
        description=goal.description or f"Run a plan for the goal {goal.event_type}.",
        tags=["plan"],
    )
