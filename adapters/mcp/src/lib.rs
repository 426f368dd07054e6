//! mcp-forge-mcp
