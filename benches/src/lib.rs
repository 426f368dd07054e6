//! mcp-forge-benches
