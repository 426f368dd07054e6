//! mcp-forge-guest
