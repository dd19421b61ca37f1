"""Dynamo's own frontend, as its PyPI package (ai-dynamo-runtime) has it: OpenAI's API on the port given, and the router
that follows KV events. Workers are found through the environment (DYN_DISCOVERY_BACKEND and its like)."""

import asyncio
import os
import sys

from dynamo.llm import EngineType, EntrypointArgs, KvRouterConfig, RouterConfig, RouterMode, make_engine, run_input
from dynamo.runtime import DistributedRuntime


async def main() -> None:
    plane = {"event_plane": os.environ["DYN_EVENT_PLANE"]}
    runtime = DistributedRuntime(
        asyncio.get_running_loop(), os.environ["DYN_DISCOVERY_BACKEND"], os.environ["DYN_REQUEST_PLANE"], **plane
    )
    entry = EntrypointArgs(
        EngineType.Dynamic,
        http_host="127.0.0.1",
        http_port=int(sys.argv[1]),
        router_config=RouterConfig(RouterMode.KV, KvRouterConfig()),
    )
    await run_input(runtime, "http", await make_engine(runtime, entry))


asyncio.run(main())
