//! mcp-forge-libcontainer
