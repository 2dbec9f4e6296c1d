"""Commands that measure and inspect models: eval, compare, cost, explain, map, diagnose."""
