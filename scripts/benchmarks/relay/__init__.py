"""inferd beside the other gateways of its field, a bare splice, and no gateway at all."""
