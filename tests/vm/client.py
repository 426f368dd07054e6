"""A small MCP client on standard input and output, for the checks in the machine.

client.py [--kill-helpers] [--kill-server] [--hold FILE --ready FILE] -- COMMAND...

Starts COMMAND (an `mcp-forge serve`), runs a program in it and prints the structured result as
one line of JSON. With --kill-helpers it kills the server's helper processes after that and runs
the program again; both results must be there. With --hold it makes the file --ready after the
first run and waits for the other file, so that several servers live at once. With --kill-server
it kills the server with SIGKILL in the middle of a run.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.serial = 0
        self.ask(
            "initialize",
            protocolVersion="2025-06-18",
            capabilities={},
            clientInfo={"name": "vm", "version": "1"},
        )
        self.tell("notifications/initialized")

    def write(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def tell(self, method, **params):
        self.write({"method": method, "params": params})

    def request(self, method, **params):
        self.serial += 1
        self.write({"id": self.serial, "method": method, "params": params})
        return self.serial

    def ask(self, method, **params):
        serial = self.request(method, **params)
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == serial and "method" not in message:
                return message.get("result", message)
        raise SystemExit("the server closed its output")

    def run(self, code):
        result = self.ask("tools/call", name="execute_python", arguments={"code": code})
        return result.get("structuredContent", result)

    def pid(self):
        """The server itself: the command may be a shell or systemd-run that became it."""
        waiting = [self.process.pid]
        while waiting:
            pid = waiting.pop(0)
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if words[0].endswith(b"mcp-forge") and b"serve" in words:
                return pid
            waiting += children(pid)
        raise SystemExit("no server among the processes")


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        own = file.read().split()
    for task in os.listdir(f"/proc/{pid}/task"):
        if task != str(pid):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                own += file.read().split()
    return [int(child) for child in own]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill-helpers", action="store_true")
    parser.add_argument("--kill-server", action="store_true")
    parser.add_argument("--hold")
    parser.add_argument("--ready")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[0] == "--" else arguments.command
    server = Server(command)
    results = [server.run("6 * 7")]
    if arguments.hold:
        open(arguments.ready, "w").close()
        while not os.path.exists(arguments.hold):
            time.sleep(0.1)
        results.append(server.run("6 * 7"))
    if arguments.kill_helpers:
        for helper in children(server.pid()):
            for nursery in children(helper):
                os.kill(nursery, signal.SIGKILL)
            os.kill(helper, signal.SIGKILL)
        time.sleep(0.5)
        results.append(server.run("6 * 7"))
    if arguments.kill_server:
        server.request(
            "tools/call",
            name="execute_python",
            arguments={"code": "import time\nwhile True: time.sleep(1)"},
        )
        time.sleep(2)
        os.kill(server.pid(), signal.SIGKILL)
    server.process.stdin.close()
    server.process.wait(30)
    print(json.dumps(results))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
