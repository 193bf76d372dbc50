"""Where the references of a JSON schema lead: do they resolve, can a value end, are choices apart.

Pure. Only references that the engine's grammar follows resolve: `#`, or a path of plain names.
"""

from __future__ import annotations

from typing import Any, Final

Node = dict[str, Any]

CHAIN_MAX: Final = 32
"""References that follow each other directly, and passes over a schema that refers to itself."""
BRANCHES_MAX: Final = 64
"""Schemas of one `oneOf`, which are compared pair by pair."""


class References:
    """The references of one schema. Nothing in it is changed."""

    def __init__(self, root: Node) -> None:
        self._root = root

    def resolves(self, reference: str) -> bool:
        return self.target(reference) is not None

    def target(self, reference: str) -> Node | bool | None:
        """The schema that a reference names, through further ones; None if there is none."""
        node: Any = self._root
        if not reference.startswith("#") or "~" in reference or "%" in reference:
            return None
        if reference == "#":
            return self._root
        head, *names = reference.split("/")
        if head != "#":
            return None
        for name in names:
            node = node.get(name) if isinstance(node, dict) else None
        return node if isinstance(node, dict | bool) else None

    def follow(self, node: Any) -> Any:  # noqa: ANN401 (whatever a client wrote)
        """The schema behind a chain of references; None if it does not end."""
        for _ in range(CHAIN_MAX):
            if not (isinstance(node, dict) and "$ref" in node):
                return node
            node = self.target(node["$ref"])
        return None

    def disjoint(self, branches: list[Any]) -> bool:
        """Surely no value is valid against two of them."""
        if len(branches) > BRANCHES_MAX:
            return False
        found = [self.follow(branch) for branch in branches]
        return all(
            self._apart(one, other) for index, one in enumerate(found) for other in found[:index]
        )

    def _apart(self, one: Any, other: Any) -> bool:  # noqa: ANN401
        if not (isinstance(one, dict) and isinstance(other, dict)):
            return False
        kinds, others = _kinds(one), _kinds(other)
        if kinds and others and not kinds & others:
            return True
        values, further = _values(one), _values(other)
        if values and further:
            return not values & further
        shared = set(one.get("required", ())) & set(other.get("required", ()))
        return any(
            (mine := _values(self.follow((one.get("properties") or {}).get(name))))
            and (theirs := _values(self.follow((other.get("properties") or {}).get(name))))
            and not mine & theirs
            for name in shared
        )

    def endless(self) -> str | None:
        """The pointer of a reference behind which no finite value lies; None if there is none."""
        nodes = _nodes(self._root)
        if not any("$ref" in node for _, node in nodes):
            return None
        finite: set[int] = set()
        for _ in range(CHAIN_MAX):
            before = len(finite)
            for _, node in reversed(nodes):
                if id(node) not in finite and self._is_finite(node, finite):
                    finite.add(id(node))
            if len(finite) == before:
                break
        return next((at for at, node in nodes if "$ref" in node and id(node) not in finite), None)

    def _is_finite(self, node: Node, finite: set[int]) -> bool:
        def ends(child: Any) -> bool:  # noqa: ANN401
            return not isinstance(child, dict) or id(child) in finite

        if "$ref" in node:
            return ends(self.target(node["$ref"]))
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                return any(ends(child) for child in node[keyword])
        if "allOf" in node:
            return all(ends(child) for child in node["allOf"])
        kinds = _kinds(node)
        if kinds - {"object", "array"}:
            return True
        properties = node.get("properties") or {}
        objects = all(ends(properties.get(name)) for name in node.get("required", ()))
        arrays = all(ends(child) for child in node.get("prefixItems", ())) and (
            not node.get("minItems") or ends(node.get("items"))
        )
        if kinds == {"array"}:
            return arrays
        return objects if kinds == {"object"} else objects or arrays


def _kinds(node: Node) -> frozenset[str]:
    """Types; a number is an integer too."""
    given = node.get("type", ())
    kinds = {given} if isinstance(given, str) else set(given)
    return frozenset(kinds | ({"integer"} if "number" in kinds else set()))


def _values(node: Any) -> frozenset[str] | None:  # noqa: ANN401
    """What `const` or `enum` allow, each with its type; None without either."""
    if not isinstance(node, dict) or not ("const" in node or "enum" in node):
        return None
    given = [node["const"]] if "const" in node else node["enum"]
    plain = [value for value in given if isinstance(value, str | int | float | None)]
    if len(plain) < len(given):
        return None
    # 1 and 1.0 are the same value, true is another one.
    return frozenset(
        repr(float(value))
        if isinstance(value, int | float) and not isinstance(value, bool)
        else repr(value)
        for value in plain
    )


def _nodes(root: Node) -> list[tuple[str, Node]]:
    """Every schema of a checked one, parents first."""
    found: list[tuple[str, Node]] = []
    stack: list[tuple[str, Any]] = [("#", root)]
    while stack:
        pointer, node = stack.pop()
        if not isinstance(node, dict):
            continue
        found.append((pointer, node))
        for keyword in ("properties", "patternProperties", "$defs", "definitions"):
            for name, child in (node.get(keyword) or {}).items():
                stack.append((f"{pointer}/{keyword}/{name}", child))
        for keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            for index, child in enumerate(node.get(keyword) or ()):
                stack.append((f"{pointer}/{keyword}/{index}", child))
        stack.append((f"{pointer}/items", node.get("items")))
        stack.append((f"{pointer}/additionalProperties", node.get("additionalProperties")))
    return found
