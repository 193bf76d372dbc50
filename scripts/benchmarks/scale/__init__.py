"""How far one inferd goes: streams at once, requests a second, large bodies, slow readers."""
