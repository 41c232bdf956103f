"""Ollama's own API, at `/api`: what Home Assistant, Open WebUI, Raycast, Zed and others speak."""
