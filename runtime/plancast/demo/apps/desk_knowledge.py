"""The knowledge of the support desk, as an MCP server on standard input and output."""

from typing import Any

from mcp.server import MCPServer

ARTICLES = {
    "Reset a password": "Open the sign-in page, choose Forgotten, and follow the link that is mailed to you.",
    "Export your data": "Under Settings, Export makes an archive of everything and mails you its address.",
    "Charged twice": "A second charge for one order is a mistake of ours, and is refunded in full.",
    "Change your plan": "Under Billing, choose another plan; the difference is charged by the day.",
}
REFUNDED = {"Charged twice"}

server = MCPServer("knowledge", log_level="WARNING")


@server.tool()
def find(question: str) -> dict[str, Any]:
    """Find the article that answers a question best."""
    asked = set(question.lower().replace("?", " ").replace(".", " ").split())
    title = max(ARTICLES, key=lambda each: len(asked & set(f"{each} {ARTICLES[each]}".lower().split())))
    return {"title": title, "text": ARTICLES[title], "refund": title in REFUNDED}


@server.tool()
def titles() -> dict[str, list[str]]:
    """List the titles of all articles."""
    return {"titles": sorted(ARTICLES)}


if __name__ == "__main__":
    server.run()
