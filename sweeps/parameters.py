"""One parameter of a sweep file, in W&B's format: which forms there are, its values in a grid, a draw from it.

    {value: 3}   {values: [1, 2]}   {values: [1, 2], probabilities: [0.9, 0.1]}
    {min: 1, max: 4}   {min: 0.1, max: 0.9}   {distribution: log_uniform_values, min: 1.0e-5, max: 6.0e-4}   ...

Defaults as W&B fills them in: `values` is categorical, whole `min` and `max` are int_uniform, others uniform.
Source: the schema that W&B publishes with its reference search (PyPI `sweeps`, config/schema.json).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

# Distribution: the keys that it must have, the keys that it may have.
DISTRIBUTIONS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "constant": (frozenset({"value"}), frozenset()),
    "categorical": (frozenset({"values"}), frozenset()),
    "categorical_w_probabilities": (frozenset({"values", "probabilities"}), frozenset()),
    "int_uniform": (frozenset({"min", "max"}), frozenset()),
    "uniform": (frozenset({"min", "max"}), frozenset()),
    "q_uniform": (frozenset({"min", "max"}), frozenset({"q"})),
    "log_uniform": (frozenset({"min", "max"}), frozenset()),
    "log_uniform_values": (frozenset({"min", "max"}), frozenset()),
    "q_log_uniform_values": (frozenset({"min", "max"}), frozenset({"q"})),
    "normal": (frozenset(), frozenset({"mu", "sigma"})),
    "q_normal": (frozenset(), frozenset({"mu", "sigma", "q"})),
    "log_normal": (frozenset(), frozenset({"mu", "sigma"})),
    "q_log_normal": (frozenset(), frozenset({"mu", "sigma", "q"})),
}


@dataclass(frozen=True)
class Parameter:
    """A key of the config, dotted, and the distribution of its values."""

    key: str
    distribution: str
    form: Mapping[str, Any]

    def grid(self) -> list[Any]:
        """Its values in a grid, in order. Raises ValueError for a distribution that has no finite set of them."""
        if self.distribution == "constant":
            return [self.form["value"]]
        if self.distribution == "categorical":
            return list(self.form["values"])
        if self.distribution == "int_uniform":
            return list(range(self.form["min"], self.form["max"] + 1))
        if self.distribution == "q_uniform":
            step, low, high = self.form.get("q", 1.0), self.form["min"], self.form["max"]
            return [low + i * step for i in range(math.floor((high - low) / step + 1e-9) + 1)]
        raise ValueError(
            f"{self.key} is {self.distribution}, which a grid cannot list; give values, or method: random."
        )

    def extremes(self) -> list[Any]:
        """Values that stand for all in a check: each of a list, both ends of a range, the middle of what has no end."""
        form = self.form
        match self.distribution:
            case "constant":
                return [form["value"]]
            case "categorical" | "categorical_w_probabilities":
                return list(form["values"])
            case "normal" | "q_normal":
                return [form.get("mu", 0.0)]
            case "log_normal" | "q_log_normal":
                return [math.exp(form.get("mu", 0.0))]
            case "log_uniform":
                return [math.exp(form["min"]), math.exp(form["max"])]
            case _:
                return [form["min"], form["max"]]

    def draw(self, random: Random) -> Any:
        """One value."""
        form = self.form
        low, high = form.get("min", 0.0), form.get("max", 0.0)
        mu, sigma = form.get("mu", 0.0), form.get("sigma", 1.0)
        match self.distribution:
            case "constant":
                return form["value"]
            case "categorical":
                return random.choice(form["values"])
            case "categorical_w_probabilities":
                return random.choices(form["values"], form["probabilities"])[0]
            case "int_uniform":
                return random.randint(low, high)
            case "uniform" | "q_uniform":
                value = random.uniform(low, high)
            case "log_uniform":
                value = math.exp(random.uniform(low, high))
            case "log_uniform_values" | "q_log_uniform_values":
                value = math.exp(random.uniform(math.log(low), math.log(high)))
            case "normal" | "q_normal":
                value = random.gauss(mu, sigma)
            case _:
                value = math.exp(random.gauss(mu, sigma))
        if not self.distribution.startswith("q_"):
            return value
        return round(value / form.get("q", 1.0)) * form.get("q", 1.0)


def read_parameters(content: Any, above: str = "") -> list[Parameter]:
    """The `parameters:` of a sweep file, nested ones as dotted keys. Raises ValueError for a form that W&B refuses."""
    if not isinstance(content, Mapping) or not content:
        raise ValueError(
            f"parameters{' of ' + above if above else ''} must be a mapping of at least one key to its values."
        )
    found = []
    for name, form in content.items():
        key = f"{above}.{name}" if above else str(name)
        if isinstance(form, Mapping) and "parameters" in form:
            if len(form) > 1:
                raise ValueError(f"{key} has parameters and {', '.join(sorted(set(form) - {'parameters'}))}; give one.")
            found += read_parameters(form["parameters"], key)
        else:
            found.append(_parameter(key, form))
    return found


def _parameter(key: str, form: Any) -> Parameter:
    if not isinstance(form, Mapping):
        raise ValueError(f"{key} is {form!r}; write {key}: {{value: {form!r}}} or {{values: [...]}}.")
    distribution = form.get("distribution") or _default(form)
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"{key} has distribution {distribution!r}; it is one of {', '.join(DISTRIBUTIONS)}.")
    needed, allowed = DISTRIBUTIONS[distribution]
    given = set(form) - {"distribution"}
    if given < needed or not given <= needed | allowed:
        may = f" and may have {', '.join(sorted(allowed))}" if allowed else ""
        raise ValueError(
            f"{key} ({distribution}) has {', '.join(sorted(given)) or 'nothing'}; "
            f"it needs {', '.join(sorted(needed)) or 'nothing'}{may}."
        )
    _check_values(key, distribution, form)
    return Parameter(key, distribution, {name: form[name] for name in given})


def _default(form: Mapping[str, Any]) -> str:
    if "value" in form:
        return "constant"
    if "values" in form:
        return "categorical_w_probabilities" if "probabilities" in form else "categorical"
    whole = all(type(form.get(bound)) is int for bound in ("min", "max"))
    return "int_uniform" if whole else "uniform"


def _check_values(key: str, distribution: str, form: Mapping[str, Any]) -> None:
    if "values" in form and (not isinstance(form["values"], list) or not form["values"]):
        raise ValueError(f"{key}.values is {form['values']!r}; give a list of at least one value.")
    if "probabilities" in form:
        chances = form["probabilities"]
        if len(chances) != len(form["values"]) or abs(sum(chances) - 1.0) > 1e-6 or min(chances) < 0:
            raise ValueError(f"{key}.probabilities must be {len(form['values'])} numbers from 0 that sum to 1.")
    for name in ("min", "max", "q", "mu", "sigma"):
        value = form.get(name, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            hint = "; YAML reads 1e-5 as a word, write 1.0e-5" if isinstance(value, str) else ""
            raise ValueError(f"{key}.{name} is {value!r}, not a number{hint}.")
    if "min" in form and "max" in form:
        if form["min"] > form["max"]:
            raise ValueError(f"{key} runs from {form['min']} to {form['max']}; min must not be above max.")
        if distribution.endswith("log_uniform_values") and form["min"] <= 0:
            raise ValueError(f"{key}.min is {form['min']}; a logarithmic range starts above 0.")
    if form.get("q", 1.0) <= 0:
        raise ValueError(f"{key}.q is {form['q']}; the step must be above 0.")
