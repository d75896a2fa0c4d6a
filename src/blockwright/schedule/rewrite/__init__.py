"""Program rewrites shared by schedule primitives."""
