"""What the HTTP server costs: beside other servers, and beside Engine.generate."""
