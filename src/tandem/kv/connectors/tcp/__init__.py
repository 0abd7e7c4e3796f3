"""The connector over plain sockets, and the stream, listener and handshake that the shared KV pool
uses too."""
