//! mcp-forge-audit-file
