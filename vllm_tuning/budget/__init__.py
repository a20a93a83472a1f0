"""The memory budget from a config.json: where each gibibyte goes, without a launch."""
