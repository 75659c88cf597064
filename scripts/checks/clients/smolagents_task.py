"""An agent of smolagents, by the class's name, with a tool that writes files."""

import sys
from pathlib import Path

import smolagents

kind, address, task = sys.argv[1:]


@smolagents.tool
def write_file(path: str, content: str) -> str:
    """Write a text file.

    Args:
        path: where the file goes
        content: what it holds
    """
    Path(path).write_text(content)
    return f"{path} is written"


model = smolagents.OpenAIModel(model_id="local", api_base=f"{address}/v1", api_key="none")
agent = getattr(smolagents, kind)(tools=[write_file], model=model, max_steps=4)
print(agent.run(task))
