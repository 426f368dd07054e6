"""An MCP server over stdio with one tool that does nothing: the FastMCP side of the comparison."""

from fastmcp import FastMCP

server = FastMCP("noop")


@server.tool
def noop() -> str:
    """Does nothing."""
    return "ok"


if __name__ == "__main__":
    server.run(transport="stdio", show_banner=False)
