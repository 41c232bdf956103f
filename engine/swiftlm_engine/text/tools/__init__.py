"""Tool calls: what models write when they call a tool, family by family, read as it comes."""
