//! mcp-forge-agent
