"""RTLIL text, module by module."""

from dataclasses import dataclass, field


@dataclass
class RtlilModule:
    """One module of RTLIL text: its name, its lines from ``module`` to ``end`` and the attribute lines before it."""

    name: str
    attributes: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)

    def cells(self) -> list[tuple[int, str]]:
        """(line index, type) of every cell."""
        found = []
        for index, line in enumerate(self.body):
            words = line.split()
            if words and words[0] == "cell":
                found.append((index, words[1]))
        return found

    def text(self) -> str:
        return "\n".join([*self.attributes, f"module {self.name}", *self.body, "end"])


def parse(rtlil: str) -> list[RtlilModule]:
    """Split RTLIL text into modules; blank lines and ``src`` attributes are dropped."""
    modules: list[RtlilModule] = []
    pending: list[str] = []
    current: RtlilModule | None = None
    depth = 0
    for raw in rtlil.splitlines():
        line = raw.strip()
        keyword = line.split(" ", 1)[0]
        if not line or keyword in ("#", "autoidx") or line.startswith("attribute \\src "):
            continue
        if current is None:
            if keyword == "module":
                current = RtlilModule(line.split()[1], pending)
                modules.append(current)
                pending, depth = [], 1
            else:
                pending.append(line)
            continue
        if keyword in ("cell", "process", "switch"):
            depth += 1
        elif keyword == "end":
            depth -= 1
            if depth == 0:
                current = None
                continue
        current.body.append(line)
    return modules
