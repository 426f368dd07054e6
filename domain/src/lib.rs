//! mcp-forge-domain
