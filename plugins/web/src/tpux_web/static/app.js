// The page of `tpux web`: what is shown, and (as a shared worker) the one stream that all tabs of a browser have.
// What a program has printed, and every other text of the server, only ever becomes a text node.
import { AnsiUp } from "/static/vendor/ansi_up.js";

// --- the stream: in a shared worker, so that a browser has one connection and not one for each tab -------------------

const PING = 30_000;
const FORGET = 150_000; // timers of hidden tabs run once a minute

class Hub {
  token = "";
  tabs = new Map();
  abort = null;
  pause = 1000;

  attach(port) {
    port.onmessage = (event) => this.receive(port, event.data);
    port.start();
  }

  receive(port, message) {
    const tab = this.tabs.get(port) ?? { subs: [], seen: 0 };
    this.tabs.set(port, tab);
    tab.seen = Date.now();
    let changed = false;
    if (message.token && (message.fresh || !this.token) && message.token !== this.token) {
      this.token = message.token;
      this.pause = 1000;
      this.tell({ token: this.token });
      changed = true;
    }
    if (message.hello) port.postMessage({ token: this.token });
    if (message.subs) {
      const known = new Map(tab.subs.map((sub) => [sub.id, sub]));
      tab.subs = message.subs.map((sub) => known.get(sub.id) ?? sub); // it keeps its offset
      changed = true;
    }
    if (message.bye) {
      this.tabs.delete(port);
      changed = tab.subs.length > 0;
    }
    if (changed) this.restart();
  }

  tell(message) {
    for (const port of this.tabs.keys()) port.postMessage(message);
  }

  restart(after = 20) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.follow(), after);
  }

  async follow() {
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    for (const [port, tab] of this.tabs) if (Date.now() - tab.seen > FORGET) this.tabs.delete(port);
    const topics = [...this.tabs].flatMap(([port, tab]) => tab.subs.map((sub) => ({ port, sub })));
    if (!topics.length) return;
    if (!this.token) return this.tell({ state: "locked" });
    const names = topics.map(({ sub }) =>
      sub.offset === undefined ? sub.name : `${sub.name}/${sub.offset < 0 ? "end" : sub.offset}`,
    );
    try {
      const query = names.map((name) => `topic=${encodeURIComponent(name)}`).join("&");
      const response = await ask(`/api/stream?${query}`, this.token, { signal: abort.signal });
      if (response.status === 401) {
        this.token = "";
        return this.tell({ state: "locked" });
      }
      if (!response.ok) throw new Error((await response.json()).error);
      this.tell({ state: "live" });
      this.pause = 1000;
      for await (const message of lines(response.body)) {
        if (message.topic === undefined) {
          this.tell({ greeting: message });
          continue;
        }
        const { port, sub } = topics[message.topic];
        if (sub.offset !== undefined && message.data.next !== undefined) sub.offset = message.data.next;
        port.postMessage({ id: sub.id, data: message.data });
      }
    } catch (error) {
      if (abort.signal.aborted) return;
      this.tell({ state: "lost", why: String(error.message ?? error) });
    }
    if (abort.signal.aborted) return;
    this.tell({ state: "lost", why: "" });
    this.restart(this.pause);
    this.pause = Math.min(this.pause * 1.5, 5000);
  }
}

function ask(path, token, options = {}) {
  const headers = { Authorization: `Bearer ${token}`, ...(options.headers ?? {}) };
  return fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options, headers });
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
  }
}

// --- what pages are made of ------------------------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

let skew = 0; // of the server's clock, in seconds
const now = () => Date.now() / 1000 + skew;

function age(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  if (s < 86400) return `${Math.floor(s / 3600)}h`;
  return `${Math.floor(s / 86400)}d`;
}

const money = (value) => (value === null ? "unknown" : value.toFixed(2));
const link = (id) => (row) => ({ text: String(row[id]), href: `/jobs/${Number(row.id)}` });

/** A table whose cells are changed in place, so that focus, selection and scroll survive. */
class Table {
  constructor(caption, columns) {
    this.columns = columns;
    this.rows = new Map();
    this.body = element("tbody", { role: "rowgroup" });
    const heads = columns.map(({ label }) => element("th", { scope: "col", role: "columnheader" }, label));
    this.empty = element("p", { class: "empty", hidden: true });
    this.table = element(
      "table",
      { role: "table" },
      element("caption", {}, caption),
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads)),
      this.body,
    );
    this.node = element("div", { class: "table" }, this.table, this.empty);
    setInterval(() => this.#write(), 1000);
  }

  update(rows, nothing = "none") {
    this.empty.hidden = rows.length > 0;
    write(this.empty, nothing);
    this.table.hidden = rows.length === 0;
    const present = new Set(rows.map((row) => row.id));
    for (const [id, row] of this.rows) {
      if (present.has(id)) continue;
      row.node.remove();
      this.rows.delete(id);
    }
    let before = this.body.firstElementChild;
    for (const data of rows) {
      let row = this.rows.get(data.id);
      if (!row) this.rows.set(data.id, (row = this.#make()));
      row.data = data;
      if (row.node === before) before = before.nextElementSibling;
      else place(this.body, row.node, before);
    }
    this.#write();
  }

  #make() {
    const cells = this.columns.map(({ label }, index) =>
      element(index ? "td" : "th", { role: index ? "cell" : "rowheader", scope: index ? undefined : "row", "data-label": label }),
    );
    return { node: element("tr", { role: "row" }, ...cells), cells };
  }

  #write() {
    for (const { cells, data } of this.rows.values()) {
      this.columns.forEach(({ value, kind }, index) => {
        const cell = cells[index];
        const shown = value(data);
        if (kind) cell.className = kind(data);
        if (typeof shown === "string") return write(cell, shown);
        let anchor = cell.firstElementChild;
        if (!anchor) cell.append((anchor = element("a")));
        if (anchor.getAttribute("href") !== shown.href) anchor.setAttribute("href", shown.href);
        write(anchor, shown.text);
      });
    }
  }
}

/** Put a node in front of another one; what has the focus keeps it. */
function place(parent, node, before) {
  const focused = node.contains(document.activeElement) ? document.activeElement : null;
  parent.insertBefore(node, before);
  focused?.focus({ preventScroll: true });
}

// --- the page ---------------------------------------------------------------------------------------------------------

class Page {
  #port;
  #subs = new Map();
  #number = 0;
  token = "";
  actions = false;
  onactions = () => {};

  constructor() {
    this.main = document.getElementById("main");
    this.status = document.getElementById("status");
    const given = new URLSearchParams(location.hash.slice(1)).get("token");
    if (given) history.replaceState(null, "", location.pathname + location.search); // it is in no history
    this.token = given || sessionStorage.getItem("token") || "";
    if (given) sessionStorage.setItem("token", given);
    this.#port = connect();
    this.#port.onmessage = (event) => this.#receive(event.data);
    this.#port.start();
    this.#port.postMessage({ hello: true, token: this.token, fresh: Boolean(given) });
    setInterval(() => this.#port.postMessage({ ping: true }), PING);
    addEventListener("pagehide", () => this.#port.postMessage({ bye: true }));
    addEventListener("pageshow", (event) => event.persisted && location.reload());
    for (const anchor of document.querySelectorAll("nav a"))
      if (location.pathname.startsWith(anchor.pathname)) anchor.setAttribute("aria-current", "page");
  }

  /** Show what the server says about a topic; returns a function that ends it. */
  watch(name, show, offset) {
    const id = `${++this.#number}`;
    this.#subs.set(id, { id, name, offset, show });
    this.#send();
    return () => {
      this.#subs.delete(id);
      this.#send();
    };
  }

  #send() {
    const subs = [...this.#subs.values()].map(({ id, name, offset }) => ({ id, name, offset }));
    this.#port.postMessage({ subs });
  }

  async get(path, options) {
    const response = await ask(path, this.token, options);
    const data = await response.json();
    if (!response.ok) throw new Error(data.error);
    return data;
  }

  #receive(message) {
    if (message.token) {
      this.token = message.token;
      sessionStorage.setItem("token", message.token);
    }
    if (message.greeting) {
      skew = message.greeting.now - Date.now() / 1000;
      if (message.greeting.actions !== this.actions) this.onactions((this.actions = message.greeting.actions));
    }
    if (message.state) this.#say(message);
    if (message.id) this.#subs.get(message.id)?.show(message.data);
  }

  #say({ state, why }) {
    document.body.dataset.state = state;
    const texts = {
      live: "live",
      lost: `no connection${why ? `: ${why}` : ""}; trying again`,
      locked: "locked: open the address that `tpux web` has printed, with its token, in this browser",
    };
    write(this.status, texts[state]);
  }
}

function connect() {
  const onlyHere = () => {
    const { port1, port2 } = new MessageChannel();
    const hub = new Hub();
    hub.attach(port2);
    document.addEventListener("visibilitychange", () => (document.hidden ? hub.abort?.abort() : hub.restart()));
    return port1;
  };
  return typeof SharedWorker === "function"
    ? new SharedWorker("/static/app.js", { type: "module", name: "tpux" }).port
    : onlyHere();
}

// --- jobs ---------------------------------------------------------------------------------------------------------------

function showJobs(page) {
  document.title = "jobs: tpux";
  const url = new URLSearchParams(location.search);
  let stop = () => {};
  let number = Number(url.get("page")) || 1;
  const filter = element("input", { id: "filter", type: "search", name: "q", value: url.get("q") ?? "", autocomplete: "off", spellcheck: "false" });
  const counts = element("p", { id: "counts", "aria-live": "polite" });
  const table = new Table("Jobs, those that have not ended first", [
    { label: "ID", value: link("id") },
    { label: "NAME", value: link("name") },
    { label: "STATE", value: (row) => row.state, kind: (row) => `state ${row.state}` },
    { label: "FOR", value: (row) => age(now() - row.since) },
    { label: "TPU", value: (row) => row.tpu },
    { label: "TRY", value: (row) => (row.attempt > 1 ? String(row.attempt) : "") },
    { label: "PROGRESS", value: (row) => row.progress },
    { label: "LAST LINE", value: (row) => row.note, kind: () => "note" },
  ]);
  const older = element("button", { type: "button", onclick: () => turn(1) }, "Next page");
  const newer = element("button", { type: "button", onclick: () => turn(-1) }, "Previous page");
  const where = element("span");
  const pages = element("nav", { "aria-label": "Pages of the table", class: "buttons", hidden: true }, newer, where, older);
  const form = element(
    "form",
    { role: "search", onsubmit: (event) => (event.preventDefault(), search()) },
    element("label", { for: "filter" }, "Filter"),
    filter,
    element("span", { class: "hint", id: "words" }, "words, state:failed, tag:x, !word"),
  );
  filter.setAttribute("aria-describedby", "words");
  page.main.append(element("h1", {}, "Jobs"), form, counts, table.node, pages);

  function show(data) {
    const states = Object.entries(data.counts).map(([state, count]) => `${count} ${state}`);
    write(counts, data.total ? states.join(", ") : "");
    table.update(data.rows, filter.value ? "no job has all of these words" : "no jobs yet: tpux run train.yaml");
    number = data.page;
    pages.hidden = data.pages < 2;
    older.disabled = data.page >= data.pages;
    newer.disabled = data.page <= 1;
    write(where, `page ${data.page} of ${data.pages}, ${data.total} jobs`);
  }
  function watch() {
    stop();
    stop = page.watch(`jobs/${number}/${filter.value}`, show);
    const query = new URLSearchParams(filter.value ? { q: filter.value } : {});
    if (number > 1) query.set("page", number);
    history.replaceState(null, "", `/jobs${query.size ? `?${query}` : ""}`);
  }
  function turn(by) {
    number = Math.max(1, number + by);
    watch();
  }
  function search() {
    number = 1;
    watch();
  }
  let typing;
  filter.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(search, 200);
  });
  watch();
}

// --- machines and queue -------------------------------------------------------------------------------------------------

function showMachines(page) {
  document.title = "machines: tpux";
  const total = element("p", { id: "counts", "aria-live": "polite" });
  const table = new Table("Machines that jobs hold", [
    { label: "NAME", value: (row) => row.name },
    { label: "TYPE", value: (row) => row.type },
    { label: "ZONE", value: (row) => row.zone },
    { label: "STATE", value: (row) => row.state, kind: (row) => `state ${row.state}` },
    { label: "WORKERS", value: (row) => String(row.workers) },
    { label: "HELD BY", value: link("job") },
    { label: "FOR", value: (row) => age(now() - row.since) },
    { label: "RELEASED", value: (row) => (row.release_at ? `in ${age(row.release_at - now())}` : row.held ? "by hand" : "") },
    { label: "PER HOUR", value: (row) => money(row.per_hour) },
    { label: "SO FAR", value: (row) => money(row.spent) },
  ]);
  const prices = element("p", { class: "hint" });
  page.main.append(element("h1", {}, "Machines"), total, table.node, prices);
  page.watch("machines", (data) => {
    table.update(data.rows, "no job holds machines");
    const { workers, queued, per_hour } = data.total;
    write(total, `${workers} workers held, ${money(per_hour)} per hour; ${queued} jobs wait for machines`);
    write(prices, `Prices: ${data.total.prices}`);
  });
}

function showQueue(page) {
  document.title = "queue: tpux";
  const counts = element("p", { id: "counts", "aria-live": "polite" });
  const table = new Table("Jobs that wait for machines", [
    { label: "JOB", value: link("job") },
    { label: "STATE", value: (row) => row.state, kind: (row) => `state ${row.state}` },
    { label: "TYPE", value: (row) => row.type },
    { label: "ZONE", value: (row) => row.zone },
    { label: "ASKED", value: (row) => (row.since ? `${age(now() - row.since)} ago` : "not yet") },
    { label: "TRIES", value: (row) => String(row.tries) },
    { label: "LAST ANSWER", value: (row) => row.answer, kind: () => "note" },
    { label: "WHAT TO DO", value: (row) => row.hint, kind: () => "note" },
  ]);
  page.main.append(element("h1", {}, "Queue"), counts, table.node);
  page.watch("queue", (data) => {
    table.update(data.rows, "no job waits for machines");
    write(counts, `${data.rows.length} waiting`);
  });
}

// --- one job ------------------------------------------------------------------------------------------------------------

function showJob(page, id) {
  const title = element("h1", {}, `Job ${id}`);
  const state = element("p", { id: "state", "aria-live": "polite" });
  const facts = element("dl");
  const failure = element("p", { class: "failure", hidden: true });
  const buttons = element("div", { class: "buttons", id: "actions" });
  const timeline = new Table("Attempts", [
    { label: "TRY", value: (row) => String(row.number || "-") },
    { label: "QUEUE", value: (row) => seconds(row.seconds.queue) },
    { label: "SET-UP", value: (row) => seconds(row.seconds["set-up"]) },
    { label: "RUN", value: (row) => seconds(row.seconds.run) },
    { label: "END", value: (row) => row.end },
    { label: "NOTE", value: (row) => row.note, kind: () => "note" },
  ]);
  const bars = element("div", { class: "bars", "aria-hidden": "true" });
  const part = (name, open, ...nodes) => element("details", { open, id: name.toLowerCase() }, element("summary", {}, element("h2", {}, name)), ...nodes);
  const text = { Command: element("pre"), Difference: element("pre"), Config: element("pre"), Events: element("pre") };
  for (const [name, pre] of Object.entries(text)) Object.entries({ tabindex: "0", role: "region", "aria-label": name }).forEach(([key, value]) => pre.setAttribute(key, value));
  const curves = new Curves();
  const log = new Log(page, id);
  const found = element("div", {});
  found.append(
    state, failure, facts, buttons,
    part("Timeline", true, bars, timeline.node),
    part("Logs", true, log.node),
    part("Progress", true, curves.node),
    part("Command", true, text.Command),
    part("Difference", false, text.Difference),
    part("Config", false, text.Config),
    part("Events", false, text.Events),
  );
  page.main.append(title, found);
  let known = null;
  let stopCurve = () => {};
  let attempts = -1;

  page.watch(`job/${id}`, (data) => {
    found.hidden = Boolean(data.gone);
    if (data.gone || data.error) {
      write(title, data.gone ?? `Job ${id}: ${data.error}`);
      return;
    }
    known = data;
    document.title = `${id} ${data.name}: tpux`;
    write(title, `${id} ${data.name}`);
    failure.hidden = !data.failure && !data.hint;
    write(failure, [data.failure, data.hint].filter(Boolean).join(" — "));
    while (facts.children.length > 2 * data.facts.length) facts.lastElementChild.remove();
    data.facts.forEach(([name, value], index) => {
      if (!facts.children[2 * index]) facts.append(element("dt"), element("dd"));
      write(facts.children[2 * index], name);
      write(facts.children[2 * index + 1], value);
    });
    timeline.update(data.attempts.map((attempt, index) => ({ id: index, ...attempt })), "no attempt yet");
    drawBars(bars, data.attempts);
    write(text.Command, data.command);
    write(text.Difference, data.difference || "there is no attempt before");
    write(text.Config, data.config);
    write(text.Events, data.events.map(({ at, text }) => `${new Date(at * 1000).toLocaleString()}  ${text}`).join("\n"));
    log.offer(data.workers);
    const last = Math.max(0, ...Object.keys(data.workers).map(Number));
    if (last !== attempts) {
      stopCurve();
      stopCurve = page.watch(`curve/${id}/${(attempts = last)}`, (curve) => curves.show(curve));
    }
    tick();
  });
  const tick = () => {
    if (!known) return;
    state.className = `state ${known.state}`;
    write(state, `${known.state} for ${age(now() - known.since)}`);
  };
  setInterval(tick, 1000);
  page.onactions = (allowed) => {
    const words = allowed ? ["stop", "resume", "rerun", "delete"] : [];
    buttons.replaceChildren(...words.map((word) => element("button", { type: "button", onclick: () => act(page, id, word) }, word)));
  };
  page.onactions(page.actions);
}

const seconds = (value) => (value === undefined ? "" : value < 100 ? `${value.toFixed(0)} s` : age(value));

function drawBars(node, attempts) {
  const total = (attempt) => Object.values(attempt.seconds).reduce((sum, value) => sum + value, 0);
  const longest = Math.max(1, ...attempts.map(total));
  node.replaceChildren(
    ...attempts.map((attempt) => {
      const bar = element("div", { class: "bar" });
      for (const [phase, took] of Object.entries(attempt.seconds)) {
        const piece = element("span", { class: `phase ${phase}` });
        piece.style.width = `${(100 * took) / longest}%`;
        bar.append(piece);
      }
      return bar;
    }),
  );
}

async function act(page, id, word) {
  const dialog = document.getElementById("ask");
  const [asked, question, answer, yes] = ["asked", "question", "answer", "yes"].map((name) => document.getElementById(name));
  write(asked, `${word} job ${id}`);
  write(question, "asking tpux what that does ...");
  write(answer, "");
  yes.disabled = true;
  dialog.showModal();
  try {
    const path = `/api/jobs/${id}/actions/${word}`;
    const { question: text, state } = await page.get(path);
    write(question, text);
    yes.disabled = false;
    yes.onclick = async () => {
      yes.disabled = true;
      write(answer, `tpux ${word} ${id} ...`);
      try {
        const done = await page.get(path, { method: "POST", body: JSON.stringify({ state }), headers: { "Content-Type": "application/json" } });
        write(answer, done.said);
      } catch (error) {
        write(answer, String(error.message));
      }
    };
  } catch (error) {
    write(question, String(error.message));
  }
}

// --- curves -------------------------------------------------------------------------------------------------------------

class Curves {
  constructor() {
    this.charts = element("div", { class: "charts" });
    this.note = element("p", { class: "hint" }, "The output names no steps yet.");
    this.table = new Table("Points of the curves", [
      { label: "TRY", value: (row) => row.attempt },
      { label: "STEP", value: (row) => String(row.step) },
      { label: "LOSS", value: (row) => (row.loss === null ? "" : String(row.loss)) },
      { label: "STEPS/S", value: (row) => (row.rate === null ? "" : String(row.rate)) },
    ]);
    const details = element("details", {}, element("summary", {}, "As a table"), this.table.node);
    this.node = element("div", {}, this.charts, this.note, details);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.show(this.data));
    addEventListener("resize", () => this.show(this.data));
  }

  show(data) {
    if (!data?.attempts) return;
    this.data = data;
    const attempts = Object.entries(data.attempts);
    this.charts.replaceChildren();
    this.#draw("loss", attempts, 1);
    this.#draw("steps per second", attempts, 2);
    write(this.note, attempts.length ? (data.sampled ? "From samples of the output of worker 0." : "From the output of worker 0.") : "The output names no steps yet.");
    const rows = attempts.flatMap(([attempt, points]) => points.map(([step, loss, rate]) => ({ attempt, step, loss, rate })));
    const every = Math.ceil(rows.length / 100) || 1;
    this.table.update(rows.filter((_, index) => index % every === 0).map((row, id) => ({ id, ...row })));
  }

  #draw(name, attempts, field) {
    const lines = attempts.map(([attempt, points]) => [attempt, points.filter((point) => point[field] !== null)]).filter(([, points]) => points.length > 1);
    if (!lines.length) return;
    const steps = [...new Set(lines.flatMap(([, points]) => points.map(([step]) => step)))].sort((a, b) => a - b);
    const series = lines.map(([, points]) => {
      const by = new Map(points.map((point) => [point[0], point[field]]));
      return steps.map((step) => by.get(step) ?? null);
    });
    const style = getComputedStyle(document.documentElement);
    const colour = (key) => style.getPropertyValue(key).trim();
    const axis = { stroke: colour("--text"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    const box = element("div", { role: "img", class: "chart", "aria-label": `${name} over the step, a line for each attempt; the points are in the table below` });
    this.charts.append(element("h3", {}, name), box);
    const width = Math.max(200, this.charts.clientWidth);
    const colours = ["--line1", "--line2", "--line3", "--line4"].map(colour);
    new uPlot(
      {
        width,
        height: 180,
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false } },
        axes: [axis, axis],
        series: [{}, ...lines.map(([attempt], index) => ({ label: `attempt ${attempt}`, stroke: colours[index % 4], width: 2, spanGaps: true }))],
      },
      [steps, ...series],
      box,
    );
  }
}

// --- logs ---------------------------------------------------------------------------------------------------------------

const MOST_LINES = 5000;
const LONGEST_LINE = 4000;
const encoder = new TextEncoder();

/** Escape sequences of colours as pieces of text; all others are left out. */
class Pieces extends AnsiUp {
  transform_to_html(fragment) {
    this.pieces.push(fragment);
    return "";
  }
  process_hyperlink(packet) {
    this.pieces.push(this.with_state({ text: packet.text }));
    return "";
  }
  of(text) {
    this.pieces = [];
    this.ansi_to_html(text);
    return this.pieces;
  }
}

function paint(node, text) {
  const last = text.replace(/\r+$/, "");
  const drawn = last.slice(last.lastIndexOf("\r") + 1); // a progress bar is its last state
  const cut = drawn.length > LONGEST_LINE ? `${drawn.slice(0, LONGEST_LINE)}…` : drawn;
  if (!cut.includes("\x1b")) return write(node, cut.replace(/[\x00-\x08\x0b-\x1f\x7f]/g, ""));
  const spans = new Pieces().of(cut).map((piece) => {
    const text = piece.text.replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");
    if (!piece.fg && !piece.bg && !piece.bold) return document.createTextNode(text);
    const span = element("span", {}, text);
    if (piece.bold) span.classList.add("bold");
    if (piece.fg?.class_name === "truecolor" || piece.fg?.class_name.startsWith("palette")) span.style.color = `rgb(${piece.fg.rgb.join(",")})`;
    else if (piece.fg) span.classList.add(`${piece.fg.class_name}-fg`);
    if (piece.bg) span.style.backgroundColor = `rgb(${piece.bg.rgb.join(",")})`;
    return span;
  });
  node.replaceChildren(...spans);
}

class Log {
  #stop = () => {};
  #open = null; // the line at the end that is not complete, and its text
  #rest = "";
  #start = 0;
  #unseen = 0;
  #automatic = true;

  constructor(page, job) {
    this.page = page;
    this.job = job;
    this.attempt = element("select", { id: "attempt", onchange: () => ((this.#automatic = false), this.#workers(), this.begin()) });
    this.worker = element("select", { id: "worker", onchange: () => this.begin() });
    this.grep = element("input", { id: "grep", type: "search", autocomplete: "off", oninput: () => this.#filter() });
    this.follow = element("input", { id: "follow", type: "checkbox", checked: true, onchange: () => this.#jump() });
    this.wrap = element("input", { id: "wrap", type: "checkbox", checked: true, onchange: () => this.lines.classList.toggle("wrapped", this.wrap.checked) });
    this.lines = element("div", { id: "log", class: "wrapped", role: "log", "aria-live": "off", "aria-label": "Output", tabindex: "0", onscroll: () => this.#scrolled() });
    this.more = element("button", { type: "button", onclick: () => this.#earlier(), hidden: true }, "Earlier lines");
    this.fresh = element("button", { type: "button", onclick: () => ((this.follow.checked = true), this.#jump()), hidden: true });
    this.note = element("p", { class: "hint", role: "status" }, "no output yet");
    const label = (name, control) => element("label", {}, name, " ", control);
    this.node = element(
      "div",
      {},
      element("div", { class: "buttons" }, label("Attempt", this.attempt), label("Worker", this.worker), label("Search", this.grep), label("Follow", this.follow), label("Wrap", this.wrap)),
      element("div", { class: "buttons" }, this.more, this.fresh),
      this.lines,
      this.note,
    );
  }

  /** Offer the outputs that there are; a new attempt is shown unless the user has chosen one. */
  offer(workers) {
    const before = `${this.attempt.value}/${this.worker.value}`;
    this.known = workers;
    const attempts = Object.keys(workers).filter((attempt) => workers[attempt].length);
    options(this.attempt, attempts);
    if (this.#automatic && attempts.length) this.attempt.value = attempts.at(-1);
    this.#workers();
    if (`${this.attempt.value}/${this.worker.value}` !== before && this.attempt.value) this.begin();
  }

  #workers() {
    options(this.worker, (this.known[this.attempt.value] ?? []).map(String));
  }

  begin() {
    this.#stop();
    this.#open = null;
    this.#rest = "";
    this.lines.replaceChildren();
    write(this.note, "");
    this.more.hidden = true;
    this.first = true;
    const name = `log/${this.job}/${this.attempt.value}/${this.worker.value}`;
    this.#stop = this.page.watch(name, (data) => this.#add(data), -1);
  }

  #add(data) {
    if (this.first || data.anew || data.skipped) {
      this.first = false;
      if (!data.skipped) this.#start = data.start;
      this.more.hidden = this.#start <= 0;
      this.#open = null;
      this.#rest = "";
      if (data.anew) this.lines.replaceChildren();
      if (data.skipped) this.lines.append(element("div", { class: "line gap" }, `… ${data.skipped} bytes left out: the program prints faster than this page shows`));
      if (data.skipped) this.lines.lastElementChild.size = data.skipped;
    }
    const parts = (this.#rest + data.text).split("\n");
    this.#rest = parts.pop();
    const made = document.createDocumentFragment();
    for (const text of parts) made.append(this.#line(text));
    let added = parts.length;
    if (this.#rest) made.append((this.#open = this.#line(this.#rest)));
    else this.#open = null;
    this.lines.append(made);
    if (this.follow.checked) this.#trim(MOST_LINES);
    if (this.follow.checked) this.#jump();
    else if (added) {
      this.#unseen += added;
      this.fresh.hidden = false;
      write(this.fresh, `${this.#unseen} new lines`);
      if (this.lines.childElementCount > 4 * MOST_LINES) this.#trim(3 * MOST_LINES);
    }
  }

  /** Return the element of a line; the one that was not complete is used again. */
  #line(text) {
    const node = this.#open ?? element("div", { class: "line" });
    this.#open = null;
    node.size = encoder.encode(text).length + 1;
    paint(node, text);
    this.#match(node);
    return node;
  }

  /** Remove the first lines; `Earlier lines` reads them again. */
  #trim(most) {
    while (this.lines.childElementCount > most) {
      this.#start += this.lines.firstElementChild.size ?? 0;
      this.lines.firstElementChild.remove();
      this.more.hidden = false;
    }
  }

  #match(node) {
    const wanted = this.grep.value.toLowerCase();
    node.hidden = Boolean(wanted) && !node.textContent.toLowerCase().includes(wanted);
  }

  #filter() {
    for (const node of this.lines.children) this.#match(node);
    if (this.follow.checked) this.#jump();
  }

  #jump() {
    if (!this.follow.checked) return;
    this.#unseen = 0;
    this.fresh.hidden = true;
    this.lines.scrollTop = this.lines.scrollHeight;
  }

  #scrolled() {
    const atEnd = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < 30;
    if (atEnd === this.follow.checked) return;
    if (atEnd && !this.#unseen) return; // the user has turned it off
    this.follow.checked = atEnd;
    if (atEnd) this.#jump();
  }

  async #earlier() {
    try {
      const data = await this.page.get(`/api/jobs/${this.job}/log/${this.attempt.value}/${this.worker.value}/${this.#start}`);
      const lines = data.text.split("\n");
      if (lines.at(-1) === "") lines.pop();
      const height = this.lines.scrollHeight;
      this.follow.checked = false;
      const keep = this.#open;
      this.#open = null;
      this.lines.prepend(...lines.map((text) => this.#line(text)));
      this.#open = keep;
      this.lines.scrollTop += this.lines.scrollHeight - height;
      this.#start = data.start;
      this.more.hidden = this.#start <= 0;
    } catch (error) {
      write(this.note, String(error.message));
    }
  }
}

function options(select, values) {
  const present = [...select.options].map((option) => option.value);
  if (present.join() === values.join()) return;
  const chosen = select.value;
  select.replaceChildren(...values.map((value) => element("option", { value }, value)));
  if (values.includes(chosen)) select.value = chosen;
}

// --- start --------------------------------------------------------------------------------------------------------------

if (typeof SharedWorkerGlobalScope === "function" && self instanceof SharedWorkerGlobalScope) {
  const hub = new Hub();
  self.addEventListener("connect", (event) => hub.attach(event.ports[0]));
} else {
  const page = new Page();
  const job = /^\/jobs\/([0-9]+)$/.exec(location.pathname);
  if (job) showJob(page, Number(job[1]));
  else if (location.pathname === "/machines") showMachines(page);
  else if (location.pathname === "/queue") showQueue(page);
  else showJobs(page);
}
