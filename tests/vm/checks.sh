#!/usr/bin/env bash
# Runs inside the machine, as root, when it has booted. One line for each check: `ok NAME` or
# `not ok NAME`, followed by `# ` lines of evidence. See run, which reads them.
set -uo pipefail
here=/opt/vm
only="$(cat $here/only 2>/dev/null || echo .)"
install -m 755 $here/mcp-forge /usr/local/bin/mcp-forge
export HOME=/root LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd /
scratch=/run/checks
mkdir -p $scratch && chmod 1777 $scratch
group=

# -- the frame ---------------------------------------------------------------------------------

ok() { echo "ok $group: $1"; }
not_ok() {
    echo "not ok $group: $1"
    shift
    printf '%s\n' "$@" | head -c 3000 | sed 's/^/#   /'
}
# check NAME COMMAND...: the command's output is the evidence when it fails.
check() {
    local name="$1" evidence
    shift
    if evidence="$("$@" 2>&1)"; then ok "$name"; else not_ok "$name" "$evidence"; fi
}
# A group of checks. It fails as a whole when it takes too long.
in_group() {
    group="$1"
    [[ "$group" =~ $only ]] || return 0
    echo "group $group ($(cut -d. -f1 /proc/uptime) s after boot)"
    shift
    "$@"
}

# json FILE EXPRESSION: whether the expression is true of the document, as `r`.
json() {
    python3 - "$1" "$2" <<'PY'
import json, sys
with open(sys.argv[1]) as file:
    text = file.read()
try:
    r = json.loads(text)
    good = eval(sys.argv[2])
except Exception as e:
    good, text = False, f"{e!r}\n{text}"
if not good:
    print(f"not true: {sys.argv[2]}\n{text[:2000]}")
sys.exit(not good)
PY
}
enforced='r["limits"]["enforced"] is True and r["limits"]["weak"] == [] and r["limits"]["effective"] == r["limits"]["requested"]'

# Everything of the product in the control groups, and every process of it.
groups_left() { find /sys/fs/cgroup -mindepth 1 -type d \( -name 'mcp-forge-*' -o -name nursery \) 2>/dev/null; }
processes_left() { pgrep -a -f '^(/proc/self/exe|(/usr/local/bin/)?mcp-forge) |^/[.a-z-]*forge/agent' ; }
nothing_left() {
    local waited
    for waited in {1..50}; do
        [[ -z "$(groups_left)$(processes_left)" ]] && return 0
        sleep 0.2
    done
    groups_left
    processes_left
    return 1
}
# All groups that systemd did not make: those of units have a suffix of their own.
foreign() {
    find /sys/fs/cgroup -mindepth 1 -type d | grep -Ev '\.(slice|service|scope|mount|socket|swap)$' |
        grep -Ev '/init\.scope' | sort
}

user() { # user NAME COMMAND...: with the environment of a session, from outside of any session.
    local name="$1" id
    shift
    id="$(id -u "$name")"
    setpriv --reuid "$name" --regid "$name" --init-groups env -i HOME="/home/$name" USER="$name" \
        LC_ALL=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin XDG_RUNTIME_DIR="/run/user/$id" \
        DBUS_SESSION_BUS_ADDRESS="unix:path=/run/user/$id/bus" "$@"
}
export -f user

# -- ways to start it --------------------------------------------------------------------------

# Each takes the command and its arguments; none may take longer than two minutes.
root_shell() { timeout 120 "$@"; }
root_scope() { timeout 120 systemd-run --quiet --scope -p Delegate=yes "$@"; }
root_service() { timeout 120 systemd-run --quiet --pipe --wait -p Environment=HOME=/root "$@"; }
# As in a container that has the control groups for itself.
root_namespace() {
    timeout 120 systemd-run --quiet --pipe --wait -p Delegate=yes -p Environment=HOME=/root unshare --cgroup --mount bash -c \
        'umount /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && "$@"' bash "$@"
}
user_scope() { user ann timeout 120 systemd-run --quiet --user --scope -p Delegate=yes "$@"; }
# Marked as delegated by its user.
user_marked_scope() {
    user_scope bash -c 'python3 -c "import os
group = open(\"/proc/self/cgroup\").read().strip().split(\":\", 2)[2]
os.setxattr(\"/sys/fs/cgroup\" + group, \"user.delegate\", b\"1\")" && exec "$@"' bash "$@"
}
user_service() { user ann timeout 120 systemd-run --quiet --user --pipe --wait -p Delegate=yes "$@"; }
user_plain() { user ann timeout 120 "$@"; }
user_undelegated_scope() { user ann timeout 120 systemd-run --quiet --user --scope "$@"; }
user_undelegated_service() { user ann timeout 120 systemd-run --quiet --user --pipe --wait "$@"; }
user_login() { timeout 120 runuser -l ann -c "$(printf '%q ' "$@")"; }

# -- checks ------------------------------------------------------------------------------------

run_json() { # run_json WAY FILE ARGUMENTS...
    local way="$1" out="$2"
    shift 2
    "$way" mcp-forge run --json "$@" >"$out" 2>"$out.err" </dev/null
    echo $? >"$out.status"
}
tried() { # tried FILE EXPRESSION
    json "$1" "$2" && return 0
    echo "exit status $(cat "$1.status")"
    cat "$1.err"
    return 1
}
both() { tried "$1" "$2" && tried "$1" "$enforced"; }

every_limit() {
    local way="$1" out="$scratch/$1" code
    "$way" mcp-forge doctor --json >"$out.doctor" 2>"$out.doctor.err" </dev/null
    echo $? >"$out.doctor.status"
    check "doctor says that every limit is enforced" tried "$out.doctor" \
        'r["works"] and all(c["state"] == "ok" for c in r["checks"]) and any("v2: memory, cpu and pids" in c["evidence"] for c in r["checks"])'

    run_json "$way" "$out.run" -c '6*7'
    check "6*7 is 42 under limits as asked for" both "$out.run" 'r["result"] == 42 and r["ended_by"] == "completed"'
    check "what was used is measured" tried "$out.run" \
        'r["usage"]["cpu_ms"] > 0 and 1 << 20 < r["usage"]["peak_memory_bytes"] < 256 << 20'

    run_json "$way" "$out.oom" --memory 64m -c 'x = bytearray(512 << 20)'
    check "512 MB under 64 MB is killed" both "$out.oom" 'r["ended_by"] == "oom"'
    check "64 MB were what it had at the most" tried "$out.oom" \
        '32 << 20 < r["usage"]["peak_memory_bytes"] <= 64 << 20'

    code='import os
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(24 << 20)
        os._exit(0 if len(x) else 1)
print([os.wait()[1] for _ in range(8)])'
    # Each of them is far below the limit, all together are above it when they live at once.
    code="${code/os._exit/import time; time.sleep(3); os._exit}"
    run_json "$way" "$out.sum" --memory 100m -c "$code"
    check "memory counts over all processes of a run" both "$out.sum" \
        'r["usage"]["peak_memory_bytes"] <= 100 << 20 and (r["ended_by"] == "oom" or "9" in r["stdout"])'

    run_json "$way" "$out.fork" -c 'import os, time
while True:
    if os.fork() == 0: time.sleep(60)'
    check "the process too many is refused" both "$out.fork" 'r["ended_by"] == "pids" and r["error"]["name"] == "BlockingIOError"'
    # Its processes die of the refusal and make room for others, so it may last till its time is up.
    run_json "$way" "$out.bomb" --timeout 3 -c 'import os
while True: os.fork()'
    check "a fork bomb does not get out" both "$out.bomb" 'r["ended_by"] in ("pids", "error", "timeout")'

    run_json "$way" "$out.time" --timeout 1 -c 'while True: pass'
    check "an endless loop is stopped after its second" both "$out.time" \
        'r["ended_by"] == "timeout" and 1000 <= r["duration_ms"] < 6000'

    code='import time
end, cpu = time.monotonic() + 4, time.process_time()
while time.monotonic() < end: pass
time.process_time() - cpu'
    run_json "$way" "$out.cpu20" --cpu-quota 20000 -c "$code"
    check "a fifth of a CPU is a fifth" both "$out.cpu20" '0 < r["result"] < 4 * 0.26'
    run_json "$way" "$out.cpu100" --cpu-quota 100000 -c "$code"
    check "a whole CPU is more" both "$out.cpu100" 'r["result"] > 4 * 0.35'
    check "nothing is left afterwards" nothing_left
}

# The same in short, for ways that differ only in how they come to their control group.
main_limits() {
    local way="$1" out="$scratch/$1"
    run_json "$way" "$out.run" -c '6*7'
    check "6*7 is 42 under limits as asked for" both "$out.run" 'r["result"] == 42'
    run_json "$way" "$out.oom" --memory 64m -c 'x = bytearray(512 << 20)'
    check "512 MB under 64 MB is killed, not the server" both "$out.oom" 'r["ended_by"] == "oom"'
    run_json "$way" "$out.fork" -c 'import os, time
while True:
    if os.fork() == 0: time.sleep(60)'
    check "the process too many is refused" both "$out.fork" 'r["ended_by"] == "pids"'
    check "nothing is left afterwards" nothing_left
}

# A server that dies by SIGKILL in the middle of a run.
killed_server() {
    local way="$1" pid
    "$way" mcp-forge run -c 'import time
while True: time.sleep(1)' >"$scratch/killed" 2>&1 </dev/null &
    local starter=$!
    for _ in {1..100}; do
        pgrep -f '/agent$' >/dev/null && break
        sleep 0.2
    done
    pid="$(pgrep -o -f '(^|/)mcp-forge run -c')"
    # systemd-run has the same words; the program itself is named by its file.
    for candidate in $(pgrep -f 'mcp-forge run -c'); do
        [[ "$(readlink /proc/"$candidate"/exe)" == /usr/local/bin/mcp-forge ]] && pid=$candidate
    done
    before="$(groups_left)"
    [[ -n "$before" ]] || { echo "no control group while it ran"; cat "$scratch/killed"; kill -9 "$pid"; return 1; }
    kill -9 "$pid"
    wait "$starter"
    nothing_left
}

# Server and warden die at the same moment, so nobody is left to clear up: the next start does.
killed_both() {
    local way="$1" pid
    "$way" mcp-forge run -c 'import time
while True: time.sleep(1)' >"$scratch/both" 2>&1 </dev/null &
    local starter=$!
    for _ in {1..100}; do
        pgrep -f '/agent$' >/dev/null && break
        sleep 0.2
    done
    for pid in $(pgrep -f 'mcp-forge run -c|/proc/self/exe'); do
        [[ "$(readlink /proc/"$pid"/exe)" == /usr/local/bin/mcp-forge ]] && echo "$pid"
    done | sort -n | xargs kill -9
    wait "$starter"
    sleep 1
    run_json "$way" "$scratch/after" -c '6*7'
    both "$scratch/after" 'r["result"] == 42' && nothing_left
}

# Two servers at once in one control group, which a shell shares with them.
two_at_once() {
    local way="$1" out="$scratch/two-$1"
    "$way" bash -c '
        for n in 1 2; do
            mcp-forge run --json -c "import time; time.sleep(3); $n" >'"$out"'.$n 2>'"$out"'.$n.err &
        done
        wait' </dev/null
    echo - >"$out.1.status"
    echo - >"$out.2.status"
    both "$out.1" 'r["result"] == 1' && both "$out.2" 'r["result"] == 2' && nothing_left
}

# One after the other in one control group, with the shell in it.
one_after_another() {
    local way="$1" out="$scratch/after-$1"
    "$way" bash -c '
        for n in 1 2; do mcp-forge run --json -c "$n" >'"$out"'.$n 2>'"$out"'.$n.err; done' </dev/null
    echo - >"$out.1.status"
    echo - >"$out.2.status"
    both "$out.1" 'r["result"] == 1' && both "$out.2" 'r["result"] == 2' && nothing_left
}

all_enforced='all(x["result"] == 42 and x["limits"]["enforced"] and x["limits"]["effective"] == x["limits"]["requested"] for x in r)'

until_there() { # until_there FILE FILE: a minute at the most
    local waited
    for waited in {1..300}; do
        [[ -e "$1" && -e "$2" ]] && return
        sleep 0.2
    done
}
# `serve` twice, each as WAY starts it, both at work at the same time.
serve_twice() {
    local way="$1" out="$scratch/serve-$1" n
    rm -f "$out".*
    for n in 1 2; do
        timeout 120 python3 $here/client.py --hold "$out.go" --ready "$out.go.$n" -- bash -c "$(declare -f user "$way"); $way mcp-forge serve" \
            >"$out.$n" 2>"$out.$n.err" </dev/null &
    done
    until_there "$out".go.1 "$out".go.2
    touch "$out.go"
    wait
    for n in 1 2; do
        echo - >"$out.$n.status"
        tried "$out.$n" "len(r) == 2 and $all_enforced" || return 1
    done
    nothing_left
}
# `serve` twice in one control group, as a client in it starts them.
serve_twice_together() {
    local way="$1" out="$scratch/together-$1" n
    rm -f "$out".*
    "$way" bash -c "$(declare -f until_there)"'
        for n in 1 2; do
            python3 '$here'/client.py --hold '"$out"'.go --ready '"$out"'.go.$n -- mcp-forge serve >'"$out"'.$n 2>'"$out"'.$n.err &
        done
        until_there '"$out"'.go.1 '"$out"'.go.2
        touch '"$out"'.go
        wait' </dev/null
    for n in 1 2; do
        echo - >"$out.$n.status"
        tried "$out.$n" "len(r) == 2 and $all_enforced" || return 1
    done
    nothing_left
}
serve_survives_helpers() {
    local way="$1" out="$scratch/helpers-$1"
    timeout 120 python3 $here/client.py --kill-helpers -- bash -c "$(declare -f user "$way"); $way mcp-forge serve" \
        >"$out" 2>"$out.err" </dev/null
    echo $? >"$out.status"
    tried "$out" "len(r) == 2 and $all_enforced" && nothing_left
}
serve_killed() {
    local way="$1" out="$scratch/killed-$1"
    timeout 120 python3 $here/client.py --kill-server -- bash -c "$(declare -f user "$way"); $way mcp-forge serve" \
        >"$out" 2>"$out.err" </dev/null
    echo $? >"$out.status"
    tried "$out" "$all_enforced" && nothing_left
}

lifecycle() {
    local way="$1"
    check "a second server at the same time" two_at_once "$way"
    check "one run after another" one_after_another "$way"
    check "serve twice at the same time" serve_twice "$way"
    check "serve twice in one control group" serve_twice_together "$way"
    check "serve goes on after its helpers were killed" serve_survives_helpers "$way"
    check "nothing is left after SIGKILL of serve in a run" serve_killed "$way"
    check "nothing is left after SIGKILL of run" killed_server "$way"
    check "the next start clears up after SIGKILL of server and warden" killed_both "$way"
}

full() {
    every_limit "$1"
    lifecycle "$1"
}

# Without delegation: refuse with the reason and the remedy, run weakly where that is accepted.
refuses() {
    local way="$1" out="$scratch/refuse-$1"
    run_json "$way" "$out" -c '6*7'
    tried "$out" 'r["error"]["kind"] == "unavailable" or r["error"]["message"]' || return 1
    grep -q 'systemd-run --user --scope -p Delegate=yes' "$out.err" || { echo "no remedy:"; cat "$out.err"; return 1; }
    [[ "$(cat "$out.status")" == 125 ]] || { echo "status $(cat "$out.status")"; return 1; }
    sed 's/^/#   said: /' "$out.err" >"$out.said"
}
doctor_warns() {
    local way="$1" out="$scratch/doctor-$1"
    "$way" mcp-forge doctor --json >"$out" 2>"$out.err" </dev/null
    echo $? >"$out.status"
    tried "$out" 'not r["works"] and any(c["name"] == "control groups" and c["state"] != "ok" and "Delegate=yes" in c["evidence"] for c in r["checks"])'
}
weakly() {
    local way="$1" out="$scratch/weak-$1" accept=MCP_FORGE_SECURITY__ACCEPT_UNENFORCED_LIMITS=true
    "$way" env $accept mcp-forge run --json -c '6*7' >"$out" 2>"$out.err" </dev/null
    echo $? >"$out.status"
    tried "$out" 'r["result"] == 42 and r["limits"]["enforced"] is False and all(w in " ".join(r["limits"]["weak"]) for w in ("memory", "cpu", "pids", "Delegate=yes"))' || return 1
    "$way" env $accept mcp-forge run --json --memory 64m -c 'x = bytearray(512 << 20)' >"$out" 2>"$out.err" </dev/null
    echo $? >"$out.status"
    tried "$out" 'r["ended_by"] == "error" and r["error"]["name"] == "MemoryError"' || return 1
    "$way" env $accept mcp-forge run --json --timeout 1 -c 'while True: pass' >"$out" 2>"$out.err" </dev/null
    echo $? >"$out.status"
    tried "$out" 'r["ended_by"] == "timeout"'
}
weak() {
    local way="$1"
    check "refused, with the reason and the remedy" refuses "$way"
    cat "$scratch/refuse-$way.said" 2>/dev/null
    check "doctor tells it too" doctor_warns "$way"
    check "runs weakly where that is accepted" weakly "$way"
    check "nothing is left afterwards" nothing_left
}

# A unit that is not delegated, beside one that is, has every controller, and it is its user's. But
# systemd ends it when a sandbox in it is killed for its memory.
neighbour() {
    local way
    user ann systemd-run --quiet --user --unit=neighbour -p Delegate=yes sleep 300
    check "a scope has every controller" user_undelegated_scope bash -c \
        'grep -w cpu /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/cgroup.controllers'
    weak user_undelegated_scope
    check "a service is refused too" refuses user_undelegated_service
    for way in scope service; do
        check "of a $way the reason is that it is not delegated" grep 'the control group is not delegated' \
            $scratch/refuse-user_undelegated_$way.err
    done
    chmod o-x /usr/bin/systemctl
    check "a delegated scope is refused when the manager cannot be asked" refuses user_scope
    check "that is the reason then" grep 'systemctl does not tell' $scratch/refuse-user_scope.err
    run_json user_marked_scope $scratch/marked -c '6*7'
    check "unless its user marked it" both $scratch/marked 'r["result"] == 42'
    chmod o+x /usr/bin/systemctl
    user ann systemctl --user stop neighbour.service
}

no_ids() {
    local out="$scratch/bob"
    timeout 60 setpriv --reuid bob --regid bob --init-groups env -i HOME=/home/bob \
        PATH=/usr/local/bin:/usr/bin:/bin mcp-forge run -c '6*7' >"$out" 2>&1 </dev/null
    [[ $? == 125 ]] && grep -q 'usermod --add-subuids' "$out" && return 0
    cat "$out"
    return 1
}
bob() { check "a user without subordinate ids is told how to get them" no_ids; }

# The verdict on a sandbox, which the audit log has.
confirmed() { # confirmed WAY ARGUMENTS...
    local way="$1" log
    shift
    log="$(user ann mktemp -d)/audit.jsonl"
    "$way" env MCP_FORGE_AUDIT__PATH="$log" mcp-forge run "$@" -c '6*7' || return 1
    grep '"verdict":"SandboxConfirmed"' "$log" || { cat "$log"; return 1; }
}

# The cases of the contract whose name has the filter in it; each must be kept, and none may be skipped. Left out by name:
# what starts engines of its own as root.
contract() { # contract WAY FILTER ARGUMENTS...
    local way="$1" filter="$2" out="$scratch/contract"
    shift 2
    "$way" env -u LC_ALL RUST_BACKTRACE=0 "$@" $here/contract "$filter" --skip a_restart_is_survived --test-threads 2 \
        >"$out" 2>&1 </dev/null
    local status=$?
    ((status == 0)) && ! grep -q '^SKIPPED' "$out" && grep -q '^test result: ok. [1-9]' "$out" && return 0
    grep '^SKIPPED' "$out" | head -n 5
    grep -E '^test .*FAILED$' "$out" | head -n 20
    grep -A4 -E '^---- ' "$out" | head -c 1500
    return 1
}
contract_counts() { grep '^test result' $scratch/contract | sed "s/^/# $group: contract without a_restart_is_survived: /"; }
contract_embedded() { user ann timeout 900 systemd-run --quiet --user --scope -p Delegate=yes "$@"; }
contract_podman() { user ann timeout 900 "$@"; }
on_podman() {
    local socket=unix:///run/user/1000/podman/podman.sock
    check "the service of Podman starts" user ann systemctl --user start podman.socket
    check "limits are enforced on Podman with crun" user ann bash -c \
        'podman info --format "{{.Host.OCIRuntime.Name}} {{.Host.CgroupsVersion}} {{.Host.CgroupControllers}}" | tee /dev/stderr | grep "crun v2 .*cpu.*memory.*pids"'
    check "a sandbox on Podman is confirmed" confirmed user_plain --runtime podman
    check "the contract is kept on rootless Podman" contract contract_podman 'podman rootless' MCP_FORGE_TEST_PODMAN_ROOTLESS=$socket
    contract_counts
    check "no container is left" user ann bash -c '[[ -z "$(podman ps --all --quiet)" ]]'
    user ann systemctl --user stop podman.socket podman.service
}
embedded() {
    check "a sandbox is confirmed" confirmed user_scope --runtime libcontainer
    check "the contract is kept" contract contract_embedded 'libcontainer::' MCP_FORGE_TEST_DELEGATED=1
    contract_counts
    check "nothing is left afterwards" nothing_left
}

unchanged() {
    diff "$scratch/foreign.before" <(foreign)
}

# -- all of it ---------------------------------------------------------------------------------

echo "vm start: $(uname -r), $(systemctl --version | head -1), $(python3 --version), cgroup $(stat -fc %T /sys/fs/cgroup), controllers $(cat /sys/fs/cgroup/cgroup.controllers)"
for _ in {1..150}; do
    user ann systemctl --user is-active --quiet basic.target && break
    sleep 0.2
done
group=machine
check "cgroup v2 with memory, pids and cpu" bash -c '
    [[ $(stat -fc %T /sys/fs/cgroup) == cgroup2fs ]] || exit 1
    for c in memory pids cpu; do grep -qw $c /sys/fs/cgroup/cgroup.controllers || exit 1; done'
check "the user has a manager" user ann systemctl --user is-active basic.target
foreign >"$scratch/foreign.before"

# First what is not delegated: once a delegated unit has come to life, systemd leaves the CPU
# controller to its neighbours as well.
in_group user-plain weak user_plain
in_group user-login weak user_login
in_group user-undelegated-scope weak user_undelegated_scope
in_group user-without-ids bob
in_group root-shell full root_shell
in_group root-scope main_limits root_scope
in_group root-service main_limits root_service
in_group root-namespace main_limits root_namespace
in_group user-scope full user_scope
in_group user-service main_limits user_service
in_group user-neighbour neighbour
in_group user-contract embedded
in_group user-podman on_podman
group=end
check "no control group is there that was not before" unchanged
echo "vm took $(cut -d. -f1 /proc/uptime) s"
echo "vm end"
