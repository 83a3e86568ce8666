"""The fabric's choices by measure: along which trees flows go, and into which flows a topic's content is cut."""
