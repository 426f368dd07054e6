"""What IRkernel and evaluate make of the R programs of docs/output.md, to be read beside it.

    apt-get install r-cran-irkernel r-cran-evaluate python3-jupyter-client
    /usr/bin/python3 tests/compare/irkernel.py >compared.txt

Not part of the tests: it starts the programs without a sandbox.
"""

import pathlib
import queue
import subprocess
import tempfile
import time
import tomllib

from jupyter_client.manager import start_new_kernel

CASES = pathlib.Path(__file__).parents[1] / "sandbox/output/cases.toml"
LIMIT = 20  # seconds
EVALUATE = """
shown <- function(x) {
  if (inherits(x, "source")) return(invisible())
  if (is.character(x)) return(cat("text:", substr(x, 1, 300), "\\n"))
  if (inherits(x, "condition")) return(cat(class(x)[1], ":", conditionMessage(x), "\\n"))
  cat("<", class(x)[1], ">\\n", sep = "")
}
for (x in evaluate::evaluate(file(commandArgs(TRUE)[1]), new_device = TRUE)) shown(x)
"""


def by_irkernel(client, manager, code):
    sent, told = client.execute(code, allow_stdin=False), []
    end = time.monotonic() + LIMIT
    while True:
        try:
            message = client.get_iopub_msg(timeout=max(end - time.monotonic(), 0.1))
        except queue.Empty:
            manager.interrupt_kernel()
            return told + ["(stopped after %d s)" % LIMIT]
        if message["parent_header"].get("msg_id") != sent:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return told
        if kind == "stream":
            told.append("%s: %s" % (content["name"], content["text"][:300]))
        elif kind in ("display_data", "execute_result"):
            text = content["data"].get("text/plain", "")
            told.append("%s %s: %s" % (kind, "|".join(sorted(content["data"])), text[:300]))
        elif kind == "error":
            told.append("error: %s: %s" % (content["ename"], content["evalue"][:300]))


def main():
    for case in tomllib.loads(CASES.read_text())["case"]:
        print("###", case["name"])
        code = case["r"].strip()
        manager, client = start_new_kernel(kernel_name="ir")
        try:
            print("\n".join(["IRkernel"] + by_irkernel(client, manager, code)))
        except Exception as error:  # the kernel died
            print("IRkernel failed:", error)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        with tempfile.NamedTemporaryFile("w", suffix=".R") as file:
            file.write(code + "\n")
            file.flush()
            try:
                done = subprocess.run(["Rscript", "-e", EVALUATE, file.name], capture_output=True, timeout=LIMIT,
                                      stdin=subprocess.DEVNULL, text=True, errors="replace")
                print("evaluate\n" + done.stdout[:1000] + done.stderr[-300:], flush=True)
            except subprocess.TimeoutExpired:
                print("evaluate\n(stopped after %d s)" % LIMIT, flush=True)


if __name__ == "__main__":
    main()
