"""The command line of placement: what people read, what programs read, and what they are told when
something is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skerry.placement.gauge import Gauge
from tests.live.commandline import Result, skerry
from tests.live.placements import Teller, idle, placed


async def run(data: Path, *arguments: str) -> Result:
    """A command, beside the sites that live in this process."""
    return await asyncio.to_thread(skerry, data, *arguments)


async def done(data: Path, *arguments: str) -> Result:
    """One that must succeed."""
    result = await run(data, *arguments)
    assert result.code == 0, result.err
    return result


async def test_plan_explain_pin_apply_and_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gauge, "read", idle)
    async with placed() as (fabric, admin):
        data = fabric.root / "hub"
        assert "not used yet" in (await done(data, "placement", "status")).out
        await done(data, "topic", "create", "t", "--latency", "20ms")
        assert "latency bound  20ms" in (await done(data, "topic", "show", "t")).out
        shown = (await done(data, "topic", "set", "t", "--latency", "30ms", "--json")).json
        assert shown["settings"]["latency"] == 0.03
        changed = (await done(data, "placement", "set", "--period", "1m", "--json")).json
        assert (changed["mode"], changed["period"]) == ("off", 60)
        plan = await done(data, "placement", "plan")
        assert "nothing to move: 1 topic" in plan.out
        teller = Teller(admin)
        await teller.tell_all(fabric, hub={"t": (0, 0)}, farm={"t": (2, 3)})

        plan = await done(data, "placement", "plan")
        assert plan.lines[0].split() == ["TOPIC", "FROM", "TO", "REPLICAS", "WHY"]
        assert plan.lines[1].split()[:4] == ["t", "hub", "farm", "-"]
        assert "break its bound of 30 ms" in plan.lines[1]
        assert "skerry placement apply" in plan.err
        (move,) = (await done(data, "placement", "plan", "--json")).json["moves"]
        assert (move["topic"], move["target"], move["cause"]) == ("t", "farm", "latency")

        told = await done(data, "placement", "explain", "t")
        assert "it should move to farm" in told.out
        assert any(line.split()[:3] == ["farm", "2", "3"] for line in told.lines)
        assert any(line.startswith("farm") and "chosen" in line for line in told.lines)
        explained = (await done(data, "placement", "explain", "t", "--json")).json
        assert explained["bound_ms"] == 30

        assert "stays where it is" in (await done(data, "placement", "pin", "t")).out
        assert "it is pinned" in (await done(data, "placement", "plan")).out
        unpinned = (await done(data, "placement", "pin", "t", "--off", "--json")).json
        assert unpinned == {"topic": "t", "pinned": False}

        applied = await done(data, "placement", "apply")
        assert applied.lines[1].split()[:4] == ["t", "hub", "farm", "moved"]
        assert (await done(data, "placement", "auto", "on")).out.startswith(
            "placement is automatic"
        )
        status = await done(data, "placement", "status")
        assert any(line.split() == ["mode", "auto"] for line in status.lines)
        assert any(line.split()[:4] == ["t", "hub", "farm", "moved"] for line in status.lines)
        whole = (await done(data, "placement", "status", "--json")).json
        assert {site["site"] for site in whole["sites"]} == {"hub", "farm", "lab"}
        assert "off" in (await done(data, "placement", "auto", "off")).out

        listed = (await done(data, "topic", "list", "--json")).json
        assert [topic["name"] for topic in listed] == ["t"]
        assert "placement/records" in (await done(data, "topic", "list", "--all")).out
        await check_errors(data)


async def check_errors(data: Path) -> None:
    """What people are told to do next."""
    wrong = await run(data, "placement", "explain", "nowhere")
    assert (wrong.code != 0, "skerry topic create" in wrong.err) == (True, True)
    wrong = await run(data, "placement", "set")
    assert "nothing to change" in wrong.err
    wrong = await run(data, "placement", "set", "--period", "1ms", "--json")
    assert wrong.error["kind"] == "BadSetting"
    wrong = await run(data, "placement", "auto", "maybe")
    assert wrong.code == 2
    wrong = await run(data, "topic", "set", "t", "--latency", "soon")
    assert "not a duration" in wrong.err
    wrong = await run(data, "topic", "create", "placement/x")
    assert "Skerry's own" in wrong.err
    commands = (await done(data, "placement", "--help")).out
    assert all(name in commands for name in ("plan", "apply", "auto", "explain", "pin", "status"))
    assert "Example: skerry placement plan" in (await done(data, "placement", "plan", "--help")).out
