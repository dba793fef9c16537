// Feeds and queries in a browser, over a WebSocket: no SDK, no library (docs/simple-clients.md).
"use strict";

// As much of the NATS protocol as that takes. It comes back by itself after a loss, with no
// subscriptions; `onUp` is called each time it is connected.
class Nats {
  constructor(url, password, onUp, onDown) {
    Object.assign(this, { url, password, onUp, onDown });
    this.open();
  }

  open() {
    this.handlers = new Map();
    this.next = 1;
    this.isGreeted = false;
    this.bytes = new Uint8Array(0);
    this.socket = new WebSocket(this.url);
    this.socket.binaryType = "arraybuffer";
    this.socket.onmessage = (message) => this.take(new Uint8Array(message.data));
    this.socket.onclose = (event) => {
      this.onDown(event.reason);
      if (!this.isClosed) setTimeout(() => this.open(), 1000);
    };
  }

  close() {
    this.isClosed = true;
    this.socket.close();
  }

  subscribe(subject, handler) {
    const sid = String(this.next++);
    this.handlers.set(sid, handler);
    this.send(`SUB ${subject} ${sid}\r\n`);
    return sid;
  }

  unsubscribe(sid) {
    this.handlers.delete(sid);
    this.send(`UNSUB ${sid}\r\n`);
  }

  publish(subject, text) {
    this.send(`PUB ${subject} ${new TextEncoder().encode(text).length}\r\n${text}\r\n`);
  }

  send(text) {
    this.socket.send(new TextEncoder().encode(text));
  }

  // Messages may be cut anywhere, and their sizes count bytes.
  take(data) {
    const all = new Uint8Array(this.bytes.length + data.length);
    all.set(this.bytes);
    all.set(data, this.bytes.length);
    let at = 0;
    for (;;) {
      const end = all.indexOf(10, at) + 1;
      if (!end) break;
      const words = text(all.subarray(at, end)).trim().split(" ");
      if (words[0] === "MSG" || words[0] === "HMSG") {
        const size = Number(words.at(-1));
        if (all.length < end + size + 2) break;
        const head = words[0] === "HMSG" ? Number(words.at(-2)) : 0;
        const body = all.slice(end + head, end + size);
        at = end + size + 2;
        this.handlers.get(words[2])?.(body, words[1]);
      } else {
        at = end;
        this.control(words);
      }
    }
    this.bytes = all.slice(at);
  }

  control(words) {
    if (words[0] === "PING") this.send("PONG\r\n");
    if (words[0] === "PONG") this.onUp();
    if (words[0] === "-ERR") console.warn(words.join(" "));
    if (words[0] === "INFO" && !this.isGreeted) {
      this.isGreeted = true;
      const hello = { user: "plain", pass: this.password, verbose: false, headers: true };
      this.send(`CONNECT ${JSON.stringify(hello)}\r\nPING\r\n`);
    }
  }
}

const text = (bytes) => new TextDecoder().decode(bytes);

// What docs/simple-clients.md describes. `on.joined(feed)`, `on.left(id)`, `on.event(id, data)`
// and `on.error(what)` are called.
class SimpleClient {
  constructor(url, password, name, query, on) {
    Object.assign(this, { name, query, on, feeds: new Map(), answers: new Map(), refs: 0 });
    this.nats = new Nats(url, password, () => this.begin(), on.down);
    this.beat = setInterval(() => this.isUp && this.ask("renew"), 10000);
  }

  close() {
    clearInterval(this.beat);
    this.nats.close();
  }

  // Also after a loss: whatever was told meanwhile is lost.
  begin() {
    this.isUp = true;
    for (const id of [...this.feeds.keys()]) this.leave(id);
    this.nats.subscribe(`q.out.${this.name}`, (data) => this.hear(JSON.parse(text(data))));
    this.search("");
    this.on.up();
  }

  // The answer's `ok`, or an Error. A request whose answer is lost stays open: ask again.
  ask(op, fields = {}) {
    const ref = ++this.refs;
    this.nats.publish(`q.in.${this.name}`, JSON.stringify({ op, ref, ...fields }));
    return new Promise((resolve, reject) => this.answers.set(ref, { resolve, reject }));
  }

  async search(after) {
    try {
      const found = await this.ask("query", { text: this.query, after });
      if (found.more) this.search(found.feeds.at(-1).id);
    } catch (error) {
      this.on.error(error.message);
    }
  }

  hear(told) {
    // A result is taken at once, so that no difference overtakes it.
    this.differ(told.ok ?? told);
    if (told.ended) this.search("");
    const answer = this.answers.get(told.ref);
    this.answers.delete(told.ref);
    if (told.error) {
      const error = new Error(`${told.error.what}\n${told.error.advice}`);
      answer ? answer.reject(error) : this.on.error(error.message);
    } else {
      answer?.resolve(told.ok);
    }
  }

  differ({ left = [], feeds = [], joined = [], moved = [] }) {
    for (const id of left) this.leave(id);
    for (const feed of [...feeds, ...joined]) {
      if (!this.feeds.has(feed.id)) {
        this.feeds.set(feed.id, null);
        this.on.joined(feed);
      }
      this.listen(feed);
    }
    for (const feed of moved) if (this.feeds.has(feed.id)) this.listen(feed);
  }

  listen({ id, listen }) {
    if (this.feeds.get(id)) this.nats.unsubscribe(this.feeds.get(id));
    const subject = listen?.replaceAll("/", ".");
    const heard = (data) => this.on.event(id, text(data));
    this.feeds.set(id, subject ? this.nats.subscribe(subject, heard) : null);
  }

  leave(id) {
    if (this.feeds.get(id)) this.nats.unsubscribe(this.feeds.get(id));
    this.feeds.delete(id);
    this.on.left(id);
  }
}

// The page

const part = (id) => document.getElementById(id);
let client = null;
let own = null;

const on = {
  up: () => (part("state").textContent = "connected"),
  down: (why) => (part("state").textContent = `not connected ${why ?? ""}`),
  error: (what) => (part("said").textContent = what),
  joined: ({ id, metadata }) => {
    const row = part("feeds").insertRow();
    row.id = id;
    row.insertCell().textContent = JSON.stringify(metadata);
    row.insertCell();
  },
  left: (id) => part(id)?.remove(),
  event: (id, data) => (part(id).cells[1].textContent = data),
};

part("site").onsubmit = (event) => {
  event.preventDefault();
  const { url, password, query } = event.target.elements;
  client?.close();
  own = null;
  part("feeds").replaceChildren();
  part("said").textContent = "";
  const name = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
  client = new SimpleClient(url.value, password.value, name, query.value, on);
};

part("own").onsubmit = async (event) => {
  event.preventDefault();
  const { metadata, event: data } = event.target.elements;
  try {
    const wanted = { feed: own ?? undefined, metadata: JSON.parse(metadata.value) };
    own = (await client.ask("register", wanted)).feed;
    await client.ask("publish", { feed: own, data: data.value });
  } catch (error) {
    on.error(error.message);
  }
};
