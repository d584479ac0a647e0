"""Single cases: who shares a limit, who cannot get around it, changes while the node runs."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.process import AVIARY, HANG, ROOT, Wrong, children, wait_until
from takers import SEPARATE, Taker, accounts, ask, check, command, guests_environment, serving, taking

OWN = os.getuid()
LIMIT = 100_000
PIECE = 1_000
MOST = LIMIT // PIECE
# Attaches of one user beyond what its rate lets pass at once. Each waits a second more than the one before: two attaches
# of other users are done long before the last of them, also on a busy machine.
LATE = 8


def tenant(name, more="", users=(OWN,), limit=LIMIT):
    return f"[tenants.{name}]\nusers = {list(users)}\nlimits = {{ device_memory = {limit} }}\n{more}\n"


def processes_share(tools):
    """Several processes, a fork, and one that claims to be somebody else get the limit together, to the byte."""
    with serving(tools, tenant("shared") + tenant("other", users=[OWN + 40000])) as node, contextlib.ExitStack() as stack:
        honest = guests_environment(node)
        lies = {
            "AVIARY_TENANT": "other", "AVIARY_LIMIT": "device_memory=1T", "AVIARY_SESSION": "9", "AVIARY_UID": "0",
            "AVIARY_ARENA": "1G", "AVIARY_SYNC": "1", "USER": "other",
        }
        enter = stack.enter_context
        takers = [
            enter(taking(tools, honest, PIECE)),
            enter(taking(tools, {**honest, **lies}, PIECE)),
            enter(taking(tools, {**honest, "AVIARY_TRANSPORT": "stream"}, PIECE)),
            enter(taking(tools, honest, PIECE, "fork")),
        ]
        # The fork's parent holds one piece.
        for at, taker in enumerate(takers):
            for _ in range(10 * (at + 1)):
                taker.tell("1")
        held = [taker.tell("t") for taker in takers]
        check(sum(held) == MOST - 1, f"{held} pieces and one of {MOST}")
        account = accounts(node, "shared")
        check(account["used"] == account["held"] == account["peak"] == LIMIT, f"{account}")
        check(accounts(node, "other")["used"] == 0, "the other tenant uses nothing")
        # Returning what one does not hold, and impossible sizes.
        check(takers[0].tell("u") == held[0] and accounts(node, "shared")["used"] == LIMIT, "nothing was returned")
        # An amount that one returns another one gets.
        returned = held[0] - takers[0].tell("r")
        check(takers[1].tell("t") == held[1] + returned, "another process gets what was returned")
        # A killed process gives everything back.
        takers[1].process.kill()
        wait_until(HANG, "it is returned", lambda: accounts(node, "shared")["used"] < LIMIT)
        check(takers[2].tell("t") == held[2] + held[1] + returned, "and another one gets that")


def users_are_apart(tools):
    """A tenant's users share its limit; another user has another one."""
    if OWN:
        return
    config = tenant("lab", users=[40001, 40002]) + f"[limits]\ndevice_memory = {LIMIT // 2}\n"
    with serving(tools, config) as node, contextlib.ExitStack() as stack:
        environment = guests_environment(node)
        one, two, stranger = (
            stack.enter_context(taking(tools, environment, PIECE, user=user)) for user in (40001, 40002, 40003)
        )
        for _ in range(30):
            one.tell("1")
        check(two.tell("t") == MOST - 30, "the second user gets the rest")
        check(stranger.tell("t") == MOST // 2, "a stranger has the node's limit")
        check(accounts(node, "uid-40003")["used"] == LIMIT // 2, "as a tenant of its own")


def reload(tools):
    """New limits hold at once; a bad file changes nothing; sessions go on."""
    with serving(tools, tenant("t")) as node, taking(tools, guests_environment(node), PIECE) as taker:
        check(taker.tell("t") == MOST, "the limit of the file")
        node.config.write_text(tenant("t", "weight = 3", limit=LIMIT + PIECE), encoding="utf-8")
        node.process.send_signal(signal.SIGHUP)
        wait_until(HANG, "SIGHUP", lambda: accounts(node, "t")["limit"] == LIMIT + PIECE)
        check(taker.tell("t") == MOST + 1, "a higher limit")
        for bad, why in [
            (tenant("t", limit=1) + "nonsense = 1\n", "nonsense"),
            (tenant("t", limit=1) + tenant("u"), "belongs to tenant"),
            (tenant("t", 'functions = { deny = ["ta_nothing"] }', limit=1), "ta_nothing"),
        ]:
            node.config.write_text(bad, encoding="utf-8")
            status, text = command(node, "reload")
            check(status == 1 and why in text, f"a bad file is refused: {status} {text}")
            check(accounts(node, "t")["limit"] == LIMIT + PIECE, "and the old one stays")
        node.config.write_text(tenant("t", limit=PIECE) + "[limits]\ndevice_memry = 1\n", encoding="utf-8")
        status, text = command(node, "reload")
        check(status == 0 and "device_memry" in text and "device_memory" in text, f"a name to look at: {status} {text}")
        check(accounts(node, "t")["used"] == LIMIT + PIECE, "a lower limit takes nothing back")
        check(taker.tell("1") == MOST + 1, "and grants nothing")
        check(taker.tell("r") == 0 and taker.tell("t") == 1, "what is returned counts against it")
        status, text = command(node, "tenant", "set", "t", "--limit", "device_memory=5K", "--weight", "7")
        check(status == 0 and "limit 5120" in text, f"{status} {text}")
        check(taker.tell("t") == 5, "aviary tenant set")
        check(command(node, "tenant", "set", "nobody", "--weight", "2")[0] == 1, "nobody is no tenant")
        status, text = command(node, "tenant", "show", "t")
        check(status == 0 and "weight        7" in text and "used 5000" in text, f"{status} {text}")
        command(node, "tenant", "set", "t", "--no-limit", "device_memory")
        for _ in range(20):
            taker.tell("1")
        check(taker.tell("1") == 26, "no limit")
        check(len(ask(node, "ps")["sessions"]) == 1, "it is still the first session")


def devices(tools):
    """Limits of devices: beside the tenant's own, changed while the node runs, and whatever the guest claims."""
    def on(device, pieces):
        return f'[tenants.t.devices."{device}"]\nlimits = {{ device_memory = {pieces * PIECE} }}\n'

    def used(device=None):
        account = accounts(node, "t", device=device)
        check(account["used"] == account["held"], f"{account}")
        return account["used"] // PIECE

    first = tenant("t", limit=50 * PIECE)
    with serving(tools, first + on("card*", 30) + on("card 2", 10)) as node, contextlib.ExitStack() as stack:
        honest = guests_environment(node)
        lies = {"AVIARY_TENANT": "other", "AVIARY_LIMIT": "device_memory@card 1=1T", "AVIARY_SYNC": "1"}

        def taker(device, environment=None):
            return stack.enter_context(taking(tools, environment or honest, PIECE, device))

        one, two, other, third = taker("card 1"), taker("card 1", {**honest, **lies}), taker("card 2"), taker("chip")
        for _ in range(20):
            one.tell("1")
        check(two.tell("t") == 10 and used("card 1") == 30, "processes share a device's limit")
        check(one.tell("1") == 20 and one.tell("u") == 20, "and get no more, whatever they ask for")
        check(other.tell("t") == 10, "another device has another limit")
        check(third.tell("t") == 10 and used() == 50, "and what is left of the tenant's own is for devices without")
        check(other.tell("r") == 0 and third.tell("t") == 20 and used("card 2") == 0, "which they share")
        line = r'function=ta_buffer_create resource=device_memory device="card 1" asked=1000 used=30000 limit=30000'
        check(re.search(line, node.log.read_text()), "the log names the device")
        # Changes while it runs.
        status, text = command(node, "tenant", "set", "t", "--no-limit", "device_memory", "--limit", f"device_memory@card 1={35 * PIECE}")
        check(status == 0 and f'on "card 1": used {30 * PIECE}, limit {35 * PIECE}' in text, f"{status} {text}")
        check(one.tell("t") == 25 and other.tell("t") == 10, "a higher limit of one device")
        command(node, "tenant", "set", "t", "--no-limit", "device_memory@card 1")
        check(two.tell("1") == 11, "no limit of that device, though a wider name has one")
        node.config.write_text(first + on("c*", 12) + on("card 2", 20), encoding="utf-8")
        status, text = command(node, "reload")
        check(status == 0 and not text, f"{status} {text}")
        check(one.tell("1") == 25 and used("card 1") == 36, "a lower limit takes nothing back and grants nothing")
        check(third.tell("1") == 20, "a device that had none before")
        node.config.write_text(first + on("c*", 12) + "[tenants.t.devices.x]\nlimits = { launches = 1 }\n", encoding="utf-8")
        status, text = command(node, "reload")
        check(status == 0 and "launches" in text and "per device" in text, f"{status} {text}")
        # Seeing it.
        sessions = ask(node, "ps")["sessions"]
        mine = [session["counters"].get("device_memory@card 1.used") for session in sessions]
        check(sorted(filter(None, mine)) == [11 * PIECE, 25 * PIECE], f"ps: {mine}")
        text = command(node, "metrics")[1]
        check(f'aviary_device_account_used{{tenant="t",resource="device_memory",device="card 1"}} {36 * PIECE}' in text, text)
        # Deaths.
        two.process.kill()
        wait_until(HANG, "what the dead held is returned", lambda: used("card 1") == 25)
        check(one.tell("r") == 0 and one.tell("t") == 12, "and counts no more")
    wrong = tenant("t") + '[tenants.t.devices."card*"]\ndevice_memory = 1\n'
    path = tools.directory / "wrong.toml"
    path.write_text(wrong, encoding="utf-8")
    done = subprocess.run([AVIARY, "serve", "--config", path], capture_output=True, text=True, check=False, timeout=HANG)
    check(done.returncode == 1 and "device_memory" in done.stderr and "limits" in done.stderr, done.stderr)


def only_devices(tools):
    """A tenant is told of its own devices and gets nothing of others, also of those that it names itself."""
    def chooser(node, user=OWN):
        run = [tools.program("chooser"), "card 1", "chip"]
        options = {"user": user} if user != OWN else {}
        done = subprocess.run(run, env=guests_environment(node), capture_output=True, text=True, check=False, timeout=600, **options)
        check(done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr[-2000:]}")
        return done.stdout.splitlines()

    def none_of(name):
        return f"opened {name}: TA_OUT_OF_MEMORY, a part: TA_OUT_OF_MEMORY"

    def refused(node):
        return re.findall(r"refused: tenant=t session=\d+ pid=\d+ (function=\w+ device=.*) is not allowed for the tenant \(only_devices\)", node.log.read_text())

    everything = [
        "first: TA_OK", "second: TA_OK", "opened card 1: TA_OK, a part: TA_OK", "opened chip: TA_OK, a part: TA_OK", "reserved: TA_OK",
        "worked: 0",
    ]
    # A part of a device, "created", would also need the device.
    some = [
        "first: TA_OK", "opened card 1: TA_OK, a part: TA_OUT_OF_MEMORY",
        none_of("chip"), "reserved: TA_OUT_OF_MEMORY", "worked: -10",
    ]
    part = [some[0], "opened card 1: TA_OK, a part: TA_OK", *some[2:]]
    lines = [
        'function=ta_buffer_create device="created"', 'function=ta_buffer_create device="chip"', 'function=ta_buffer_create device="created"',
        'function=ta_reserve device="testapi accelerator"', 'function=ta_accelerator_submit device="testapi accelerator"',
    ]
    own = 'only_devices = ["first", "card*"]'
    for options in [(), ("--scheduler", "fair")]:
        with serving(tools, tenant("t", own), *options) as node:
            check(chooser(node) == some, f"{chooser(node)}")
            wait_until(HANG, f"the log says so: {refused(node)}", lambda: refused(node)[:5] == lines)
    with serving(tools, 'only_devices = ["second"]\n' + tenant("t", own)) as node:
        check(chooser(node) == some, "a tenant's own list takes the place of the node's")
        if OWN == 0:
            none = [none_of("card 1"), *some[2:]]
            check(chooser(node, 40001) == none, "who has none has the node's, and a part of a device is not without it")
        status, text = command(node, "tenant", "show", "t")
        check(status == 0 and "devices       first, card*" in text, f"{status} {text}")
        found = {found["name"]: found["only_devices"] for found in ask(node, "tenants")}
        check(found["t"] == ["first", "card*"] and found.get("uid-40001", ["second"]) == ["second"], f"{found}")
        # A configuration that is read again holds for new sessions.
        with taking(tools, guests_environment(node), PIECE, "card 7") as taker:
            for more, expected in [('only_devices = ["first", "card*", "created"]', part), ("", everything)]:
                node.config.write_text(tenant("t", more), encoding="utf-8")
                status, text = command(node, "reload")
                check(status == 0 and not text and chooser(node) == expected, f"{more}: {status} {text} {chooser(node)}")
            node.config.write_text(tenant("t", 'only_devices = ["chip"]'), encoding="utf-8")
            check(command(node, "reload")[0] == 0 and chooser(node)[1] == "opened chip: TA_OK, a part: TA_OUT_OF_MEMORY", "another list")
            check(taker.tell("1") == 1, "a session that was there goes on")
            node.config.write_text(tenant("t", "only_devices = []"), encoding="utf-8")
            status, text = command(node, "reload")
            check(status == 1 and "tenant `t`: the list is empty" in text, f"{status} {text}")
            check(chooser(node)[0].startswith("opened card 1: TA_OUT"), "a bad file changes nothing")
    with serving(tools, tenant("t"), "--only-device", "first", "--only-device", "second") as node:
        check(chooser(node)[:3] == [*everything[:2], none_of("card 1")], "of the command line")
    for wrong, why in [(("--only-device", ""), "expected a device's name"), (("--only-device", "x" * 65), "64 bytes")]:
        done = subprocess.run([AVIARY, "serve", *wrong], capture_output=True, text=True, check=False, timeout=HANG)
        check(done.returncode == 2 and why in done.stderr, done.stderr)


def rules(tools):
    """APIs, functions, sessions and threads that a tenant may use."""
    more = 'sessions = 2\nthreads = 1\nfunctions = { deny = ["ta_reserve"] }'
    with serving(tools, tenant("ruled", more)) as node, contextlib.ExitStack() as stack:
        environment = guests_environment(node)
        one = stack.enter_context(taking(tools, environment, PIECE))
        check(one.tell("d") == 0, "a denied function answers like a refused call, and others work")
        wait_until(HANG, "the log says so", lambda: "function=ta_reserve denied" in node.log.read_text())
        stack.enter_context(taking(tools, environment, PIECE))
        third = Taker(tools, environment, PIECE)
        check(not third.attached, "a third session")
        text = third.errors()
        check("tenant ruled has 2 sessions already" in text, f"is told why: {text}")
        third.end()
        with contextlib.suppress(Wrong):
            one.tell("p")
            raise AssertionError("a second thread calls")
        wait_until(HANG, "the log says so", lambda: "function=thread limit=1" in node.log.read_text())
    with serving(tools, tenant("ruled", 'apis = ["opencl"]')) as node:
        other = Taker(tools, guests_environment(node), PIECE)
        check(not other.attached, "another API")
        text = other.errors()
        check("may not use the API" in text, f"is refused: {text}")
        other.end()
    with serving(tools, tenant("ruled", 'functions = { allow = ["ta_device_open", "ta_noop"] }')) as node:
        with taking(tools, guests_environment(node), PIECE) as taker:
            check(taker.tell("d") == 0, "what is not allowed is denied")


def audit(tools):
    """Refusals are told with all that matters, ten a second, and the rest is counted."""
    with serving(tools, tenant("told")) as node:
        began = time.monotonic()
        with taking(tools, guests_environment(node), PIECE) as taker:
            taker.tell("t")
            taker.tell("m")
        wait_until(HANG, "nothing is used", lambda: accounts(node, "told")["used"] == 0)
        refused = accounts(node, "told")["refused"]
        # What was not logged is said once its API server was reaped, a moment after its accounts are empty.
        wait_until(HANG, "the rest is counted", lambda: re.search(r"\d+ refusals of tenant told were not logged", node.log.read_text()))
        text = node.log.read_text()
        lines = [line for line in text.splitlines() if ": refused: tenant=told " in line]
        first = r"session=\d+ pid=\d+ function=ta_buffer_create resource=device_memory asked=1000 used=100000 limit=100000"
        check(lines and re.search(first, lines[0]), f"{lines[:1]}")
        # Ten in each second that the refusals took, of which the first and the last may be parts.
        most = 10 * (time.monotonic() - began + 2)
        check(len(lines) <= most, f"{len(lines)} lines about {refused} refusals, at most {most:.0f}")
        suppressed = sum(int(n) for n in re.findall(r"\((\d+) more of this tenant were not logged\)", text))
        suppressed += sum(int(n) for n in re.findall(r"(\d+) refusals of tenant told were not logged", text))
        check(refused == 1001 and len(lines) + suppressed == refused, f"{refused} refused, {len(lines)} told, {suppressed} not")


def revoked(tools):
    """Who lost its tenant, or a right, goes on until an operator ends it, and the operator is told."""
    def numbers():
        return {session["tenant"]: session["session"] for session in ask(node, "ps")["sessions"]}

    def outdated():
        return {session["session"]: session["outdated"] for session in ask(node, "ps")["sessions"] if "outdated" in session}

    if OWN:
        return
    with serving(tools, tenant("own") + tenant("lab", users=[40001])) as node, contextlib.ExitStack() as stack:
        environment = guests_environment(node)
        own, lab, stranger = (stack.enter_context(taking(tools, environment, PIECE, user=user)) for user in (OWN, 40001, 40002))
        session = numbers()
        check(lab.tell("1") == 1 and not outdated(), "as it began")
        less = tenant("own", 'functions = { deny = ["ta_reserve"] }\nsessions = 0')
        node.config.write_text(SEPARATE + less + tenant("lab", users=[]), encoding="utf-8")
        status, text = command(node, "reload")
        expected = [
            "tenant own has more sessions than it may have now: 1, not 0",
            f"tenant own may do less now (functions): session {session['own']} keeps its old permissions (tenant own)",
            f"user 40001 is tenant uid-40001 now: session {session['lab']} keeps its old permissions (tenant lab)",
        ]
        lines = text.splitlines()
        check(status == 0 and lines[:3] == expected and "aviary end --outdated" in lines[3], f"reload says so: {status} {text}")
        check(all(line in node.log.read_text() for line in expected), "and the log")
        check(set(outdated()) == {session["own"], session["lab"]}, f"ps says so: {outdated()}")
        text = command(node, "ps")[1]
        check(f"session {session['lab']} keeps its old permissions: user 40001 is tenant uid-40001 now" in text, text)
        check(lab.tell("1") == 2 and accounts(node, "lab")["used"] == 2 * PIECE, "it goes on")
        # A request that is not understood ends no session.
        for wrong, why in [((), "required"), (("1", "--outdated"), "cannot be used"), (("x",), "invalid")]:
            status, text = command(node, "end", *wrong)
            check(status == 2 and why in text, f"{wrong}: {status} {text}")
        status, text = command(node, "end", "--tenant", "nobody")
        check(status == 1 and "no tenant `nobody`" in text, text)
        tool = shutil.copy(AVIARY, tools.directory)
        stranger_asks = [tool, "end", "--outdated", "--server", node.address]
        done = subprocess.run(stranger_asks, capture_output=True, text=True, check=False, timeout=HANG, user=40002)
        check(done.returncode == 1 and "answers only its own user and root" in done.stderr, f"not by others: {done.stderr}")
        check(numbers() == session, f"nobody has ended: {numbers()}")
        # One of them, and one that there is not.
        status, text = command(node, "end", str(session["lab"]), "999")
        check(status == 1 and "there is no session 999" in text and f"session {session['lab']} ended: taker" in text, text)
        check(lab.tell("l") == 2, "its device is lost")
        line = f"ended: tenant=lab session={session['lab']} pid={lab.process.pid}: by an operator"
        check(line in node.log.read_text(), "the log says so")
        wait_until(HANG, "what it held is returned", lambda: accounts(node, "lab")["used"] == 0)
        with taking(tools, environment, PIECE, user=40001) as again:
            check(again.tell("1") == 1 and accounts(node, "uid-40001")["used"] == PIECE, "it comes back as somebody else")
        # All that are outdated; all of a tenant.
        status, text = command(node, "end", "--outdated", "--json")
        check(status == 0 and [s["session"] for s in json.loads(text)["ended"]] == [session["own"]], f"{status} {text}")
        check(own.tell("l") == 0 and stranger.tell("1") == 1, "no others")
        status, text = command(node, "end", "--tenant", "uid-40002")
        check(status == 0 and stranger.tell("l") == 1, f"{status} {text}")
        wait_until(HANG, "all have ended", lambda: not numbers())
        status, text = command(node, "end", "--tenant", "uid-40002")
        check(status == 0 and "no such sessions" in text, f"{status} {text}")


def remote(tools):
    """A tenant of another machine has its limit over all its links."""
    keys = tools.directory / "keys"
    for name in ("alice", "laptop"):
        made = subprocess.run([AVIARY, "tls", "init", keys, "--tenant", name], capture_output=True, text=True, check=False)
        check(made.returncode == 0, made.stderr)
    with contextlib.closing(__import__("socket").create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    config = tenant("alice", 'certificates = ["laptop"]', users=[])
    with serving(tools, config, "--listen", f"127.0.0.1:{port}", "--tls-dir", keys / "node") as node:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("AVIARY_")}
        environment = {**plain, "LD_LIBRARY_PATH": str(tools.vendor), "AVIARY_API_PATH": str(ROOT / "target/aviary")}

        def over(name):
            run = [AVIARY, "run", "--api", "testapi", "--server", f"127.0.0.1:{port}", "--tls-dir", keys / f"tenant-{name}"]
            return taking(tools, environment, PIECE, prefix=[*run, "--"])

        with over("alice") as one, over("laptop") as two, over("alice") as three:
            for _ in range(30):
                one.tell("1")
                two.tell("1")
            check(three.tell("t") == MOST - 60, "the third gets the rest")
            check(two.tell("t") == 30 and two.tell("r") == 0 and one.tell("t") == 60, "what one returns another gets")
            check(accounts(node, "alice")["used"] == LIMIT, f"{accounts(node, 'alice')}")
        wait_until(HANG, "nothing is used", lambda: accounts(node, "alice")["used"] == 0)


def attaching(tools):
    """Who attaches too often waits for its turn, and others do not."""
    if OWN:
        return
    with serving(tools, "attach_rate = 1\nspares = 2\n") as node, ThreadPoolExecutor(LATE) as pool:
        environment = guests_environment(node)

        def attach(user):
            """When it was attached."""
            with taking(tools, environment, PIECE, user=user):
                return time.monotonic()

        first = time.monotonic()
        # Attaches due in 6.4 s come at once; the last of LATE more is due LATE - 0.4 s after the first came.
        for _ in range(6):
            attach(40001)
        late = [pool.submit(attach, 40001) for _ in range(LATE)]
        others = max(attach(40002), attach(OWN))
        last = max(guest.result() for guest in late)
        check(last - first > LATE - 0.5, f"the last comes after {last - first:.2f} s")
        check(others < last, f"others wait for {others - first:.2f} s, as long as who comes too often")


def opencl(*arguments, device=""):
    """A program on a private node: its output."""
    limit = 100 << 20
    run = [AVIARY, "run", "--api", "opencl", "--limit", f"device_memory{device}={limit}", "--", *arguments, str(limit)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=600)
    check(done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr[-2000:]}")
    return done.stdout


def opencl_hidden(tools):
    """OpenCL memory that was released but is still in use counts against the limit."""
    check(opencl(tools.program("hidden_cl")) == "ok\n", "it says ok")


def opencl_devices(tools):
    """A device's limit holds in all contexts that have it, and a part of a device is that device."""
    check(opencl(tools.program("parts_cl"), device="@*") == "ok\n", "it says ok")


def opencl_leftovers(tools):
    """What one tenant left in OpenCL memory the next one does not find."""
    with serving(tools, "spares = 2\n") as node:
        for user in (40001, 40002) if OWN == 0 else (OWN, OWN):
            run = [AVIARY, "run", "--api", "opencl", "--server", node.address, "--", tools.program("leftovers_cl")]
            options = {"user": user} if OWN == 0 else {}
            done = subprocess.run(
                run, env={**os.environ, "HOME": "/tmp"}, capture_output=True, text=True, check=False, timeout=600, **options
            )
            check(done.stdout == "found 0\n", f"user {user}: {done.stdout} {done.stderr[-2000:]}")


def private_memory(pid):
    """Bytes of a process and of those below it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    own = re.search(r"^RssAnon:\s+(\d+)", status, re.MULTILINE)
    return (int(own[1]) << 10 if own else 0) + sum(private_memory(child) for child in children(pid))


def host_limits(tools):
    """Sources, programs, shared memory and objects end in the API's own error, long before they have filled the host."""
    mebibyte = 1 << 20
    small = f"[tenants.hog]\nusers = [{OWN}]\nlimits = {{ device_memory = {64 * mebibyte}"
    default, explicit = f"{small} }}\n", f"{small}, host_memory = {64 * mebibyte}, handles = 5000 }}\n"
    for config, limit, kinds in (
        (default, 256 * mebibyte, ("sources", "svm", "buffers")),
        (explicit, 64 * mebibyte, ("sources", "programs", "svm", "buffers", "kernels")),
    ):
        with serving(tools, config) as node:
            for kind in kinds:
                node.settle()
                before = private_memory(node.pid)
                run = [AVIARY, "run", "--api", "opencl", "--server", node.address, "--", tools.program("host_cl"), kind, "100000"]
                guest = subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                first = guest.stdout.readline()
                grown = private_memory(node.pid) - before
                rest, errors = guest.communicate()
                check(guest.returncode == 0, f"{kind}: {first}{rest}{errors[-2000:]}")
                check(grown < 4 * limit, f"{kind}: API servers have grown by {grown} bytes")
                print(f"     {first.strip()}; {grown >> 20} MiB in API servers", flush=True)
            for resource in ("host_memory", "handles"):
                check(accounts(node, "hog", resource)["refused"] > 0, f"{resource} was never refused")


CASES = {
    function.__name__: function
    for function in (processes_share, users_are_apart, reload, devices, only_devices, rules, audit, revoked, remote, attaching, opencl_hidden, opencl_devices, opencl_leftovers, host_limits)
}
