"""The client of PyPI `mcp` against the real server, over standard input and output.

    FORGE_BINARY=.../mcp-forge python test_python_client.py

Each test runs once in each way that the client has of opening a connection: `auto` asks the server what it speaks
(revision 2026-07-28, without sessions), `legacy` shakes hands as before it. The Rust test `python_client` starts this
file with the interpreter that MCP_FORGE_TEST_PYTHON names; `requirements.txt` lists what that one must have.
"""

import os
import unittest

from mcp import Client
from mcp.client.stdio import StdioServerParameters

REVISIONS = {"auto": "2026-07-28", "legacy": "2025-11-25"}
PATIENCE = 60  # seconds, for one answer on a busy machine
SLOW = """
import time
for step in range(3):
    print("step", step)
    time.sleep(0.5)
"""


def connect(mode):
    passed_on = {name: value for name, value in os.environ.items() if name.startswith("XDG_")}
    server = StdioServerParameters(command=os.environ["FORGE_BINARY"], args=["serve"], env=passed_on)
    return Client(server, mode=mode, read_timeout_seconds=PATIENCE)


class PythonClient(unittest.IsolatedAsyncioTestCase):
    async def in_each_mode(self, steps):
        for mode, revision in REVISIONS.items():
            with self.subTest(mode=mode):
                async with connect(mode) as client:
                    self.assertEqual(client.protocol_version, revision)
                    self.assertEqual(client.server_info.name, "mcp-forge")
                    await steps(client)

    async def test_the_tool_is_listed_with_its_schema(self):
        async def steps(client):
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            self.assertEqual(list(tools), ["execute_python", "execute_r", "get_run", "list_runs", "cancel_run"])
            schema = tools["execute_python"].input_schema
            self.assertEqual(schema["required"], ["code"])
            self.assertLessEqual({"code", "timeout", "memory", "cpu_quota", "stdin"}, set(schema["properties"]))

        await self.in_each_mode(steps)

    async def test_a_value_comes_back(self):
        async def steps(client):
            result = await client.call_tool("execute_python", {"code": "print('hello')\n6 * 7"})
            told = result.structured_content
            self.assertFalse(result.is_error, told)
            self.assertEqual((told["ended_by"], told["stdout"], told["result"]), ("completed", "hello\n", 42))
            self.assertIn("42", result.content[0].text)

        await self.in_each_mode(steps)

    async def test_a_failure_is_a_result_with_the_reason(self):
        async def steps(client):
            raised = await client.call_tool("execute_python", {"code": "x = 1\nx / 0"})
            self.assertTrue(raised.is_error)
            self.assertEqual(raised.structured_content["error"]["name"], "ZeroDivisionError")
            self.assertIn("ZeroDivisionError", raised.content[0].text)

            refused = await client.call_tool("execute_python", {"code": "1", "timeout": 0})
            self.assertTrue(refused.is_error)
            self.assertEqual(refused.structured_content["error"]["field"], "timeout")

        await self.in_each_mode(steps)

    async def test_progress_is_told_while_it_runs(self):
        async def steps(client):
            seen = []

            async def note(progress, total, message):
                seen.append((progress, message))

            result = await client.call_tool("execute_python", {"code": SLOW}, progress_callback=note)
            self.assertFalse(result.is_error, result.structured_content)
            numbers = [progress for progress, _ in seen]
            self.assertEqual(numbers, sorted(set(numbers)), "progress grows with each notification")
            self.assertTrue(any("step" in (message or "") for _, message in seen), seen)

        await self.in_each_mode(steps)


if __name__ == "__main__":
    unittest.main(verbosity=2)
