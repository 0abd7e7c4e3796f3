"""MLPerf's LoadGen as the source of load: its scenarios and verdicts, our client and queries."""
