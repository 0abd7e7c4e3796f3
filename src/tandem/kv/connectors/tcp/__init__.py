"""The connector over plain sockets, and the stream and listener that the shared KV pool
uses too."""
