"""Addresses of peers, as they are compared and counted."""

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_NETWORK_BITS: Final = 64
"""Of IPv6: who has one address of such a network has all of them."""


def parse_host(host: str) -> IPv4Address | IPv6Address | None:
    """The address, an IPv4 one in an IPv6 one as itself; None for what is none."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def network_of(host: str) -> str:
    """Whose addresses count as one: an IPv4 address, or an IPv6 network of 64 bits. What is no address is itself."""
    address = parse_host(host)
    if isinstance(address, IPv6Address):
        return str(IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS))
    return host if address is None else str(address)
