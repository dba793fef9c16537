"""A feed and a query over plain MQTT, without the SDK (docs/simple-clients.md):

    python simple_client.py HOST PORT PASSWORD NAME 'Room = "410"' '{"Room": "410"}'

Each line that you type is an event of its feed; {"Room": "411"} changes the feed's metadata.
"""

import json
import sys
import threading
import time
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion


class SimpleClient:
    def __init__(self, name: str, password: str, query: str, metadata: dict[str, Any]) -> None:
        self.name, self.query, self.metadata = name, query, metadata
        self.feed, self.topic, self.ready = None, "", threading.Event()
        self.heard: dict[str, str] = {}  # the feeds that match, and where their events come
        self.mqtt = mqtt.Client(CallbackAPIVersion.VERSION2)
        self.mqtt.username_pw_set("plain", password)
        self.mqtt.on_connect, self.mqtt.on_message = self.on_connect, self.on_message

    def ask(self, op: str, **fields: object) -> mqtt.MQTTMessageInfo:
        return self.mqtt.publish(f"q/in/{self.name}", json.dumps({"op": op, **fields}), qos=1)

    def on_connect(self, *_: object) -> None:  # also after a loss: then everything is asked anew
        self.mqtt.subscribe(f"q/out/{self.name}")
        self.ask("register", feed=self.feed, metadata=self.metadata)
        self.ask("query", text=self.query)

    def on_message(self, client: object, data: object, message: mqtt.MQTTMessage) -> None:
        if message.topic != f"q/out/{self.name}":
            print("event", message.topic.split("/")[-1], message.payload.decode(), flush=True)
            return
        told = json.loads(message.payload)
        if error := told.get("error"):
            print("refused:", error["what"], error["advice"], flush=True)
        if "ended" in told:
            self.ask("query", text=self.query)
        told = told.get("ok", told)
        for id in told.get("left", []):
            print("left", id, flush=True)
            self.mqtt.unsubscribe(self.heard.pop(id, "t/nowhere"))
        for feed in told.get("feeds", []) + told.get("joined", []) + told.get("moved", []):
            self.heard[feed["id"]] = feed["listen"] or "t/nowhere"
            self.mqtt.subscribe(self.heard[feed["id"]])
            if "metadata" in feed:
                print("joined", feed["id"], json.dumps(feed["metadata"]), flush=True)
        if told.get("more"):
            self.ask("query", text=self.query, after=told["feeds"][-1]["id"])
        if "publish" in told:  # the answer to `register` and `set`
            self.feed, self.topic, self.metadata = told["feed"], told["publish"], told["metadata"]
            self.ready.set()

    def run(self, host: str, port: int) -> None:
        self.mqtt.connect(host, port)
        self.mqtt.loop_start()
        self.ready.wait()
        threading.Thread(target=self.stay, daemon=True).start()
        for line in map(str.strip, sys.stdin):
            if line.startswith("{"):
                self.ask("set", feed=self.feed, change=json.loads(line))
            else:
                self.mqtt.publish(self.topic, line, qos=1)
        self.ask("remove", feed=self.feed).wait_for_publish()

    def stay(self) -> None:
        while True:
            time.sleep(10)
            self.ask("renew")


if __name__ == "__main__":
    host, port, password, name, query, metadata = sys.argv[1:]
    SimpleClient(name, password, query, json.loads(metadata)).run(host, int(port))
