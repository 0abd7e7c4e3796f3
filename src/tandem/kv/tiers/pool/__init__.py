"""The shared KV pool: its client at the workers, its server and stores in the processes that hold
it, and the protocol between them.
"""
