"""Request and stage timing for AI inference services."""
