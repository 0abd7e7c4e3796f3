"""The documentation as a site (`make docs`): pages out of docs/, a reference out of the code."""
