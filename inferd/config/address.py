"""`address:port` as [server] writes it. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*")
_PORT_MAX: Final = 65_535
_WANTED: Final = "must be address:port, for example 127.0.0.1:8080 or [::1]:8080"


@dataclass(frozen=True, slots=True)
class Address:
    """`host` is an address without brackets or a host name; port 0 takes any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        ip = _ip(self.host)
        return ip.is_loopback if ip else self.host.casefold() == "localhost"

    @property
    def is_any(self) -> bool:
        """Listens on every address of the machine."""
        ip = _ip(self.host)
        return ip is not None and ip.is_unspecified

    @property
    def reachable(self) -> Address:
        """Where to connect to from this machine: loopback for one that listens everywhere."""
        if not self.is_any:
            return self
        return Address("::1" if ":" in self.host else "127.0.0.1", self.port)

    def overlaps(self, other: Address) -> bool:
        """Both cannot be listened on at one time."""
        same_host = self.host.casefold() == other.host.casefold()
        return self.port == other.port != 0 and (same_host or self.is_any or other.is_any)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raise ValueError, whose text says what is wanted."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    ip = _ip(host)
    is_name = _HOST.fullmatch(host) and not host.rpartition(".")[2].isdigit()
    if not colon or not (ip or is_name) or bracketed != (ip is not None and ip.version == 6):  # noqa: PLR2004
        raise ValueError(_WANTED)
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > _PORT_MAX:
        raise ValueError(f"port must be 0 to {_PORT_MAX:,}; {_WANTED}")
    return Address(host, int(port))


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
