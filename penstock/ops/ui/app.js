// The dashboard: what the ops server says of a pipeline, and what an operator may do.

import { charts, curve } from "./charts.js";
import { map } from "./map.js";
import {
  $, $$, ask, bar, button, buttons, bytes, element, fill, follow, get, hasToken, least, link, local, most, number,
  onToken, put, rate, redraw, say, seconds, send, sum, time, zone,
} from "./page.js";
import { way, wayText } from "./way.js";

const SILENT = 5000; // milliseconds without an event, and the connection is lost
const POLL = 3000; // where the events have no room for us
const MESSAGES = 200; // that are shown
const COLUMNS = 6; // of a message, before it is opened
const dialog = $("#sure");
const HEALTH = { ok: "All is well", degraded: "It works, and something needs a look", unhealthy: "Changes do not flow as they should", standby: "This instance waits" };
// What becomes of the data.
const DANGEROUS = {
  pause: "What is in flight is stored, and nothing more is stored until it is resumed. The source keeps its changes meanwhile.",
  shutdown: "What is in flight is stored and acknowledged; the source keeps what comes after that. Nothing here starts it again.",
  "suspend-table": "Its changes are counted, and are missing in a stream until a snapshot is taken. A sink of tables holds them.",
  "cancel-snapshot": "The chunks of the snapshot go.",
  mend: "The partition counts as whole again. Its tables should have been loaded anew.",
  replay: "Each chosen dead letter is stored as if it came now. One that is refused again stays; one whose key has a later row is not stored.",
};
// What came of an action, as a sentence.
const DONE = {
  pause: ({ paused }) => `${paused.join(", ")}: paused`,
  resume: ({ resumed }) => `${[resumed].flat().join(", ")}: resumed`,
  retry: ({ restarted }) => `${restarted.join(", ")}: begun anew`,
  snapshot: ({ snapshot, reloaded }) => (snapshot ? `the snapshot ${snapshot} has begun` : `loaded anew: ${reloaded.join(", ") || "no table"}`),
  "cancel-snapshot": ({ cancelled }) => `the snapshot ${cancelled} is cancelled`,
  "suspend-table": (_, { table }) => `${table} is suspended`,
  "resume-table": ({ snapshot }, { table }) => `${table} is followed again${snapshot ? `, and its rows come with ${snapshot}` : ""}`,
  replay: ({ replayed }) => (replayed.length ? `${number(replayed.length)} dead letters are stored` : "there was no dead letter to store"),
  mend: (_, { partition }) => `${partition} counts as whole`,
  check: ({ findings }) => ["error", "warning", "ok"].map((level) => `${findings.filter((each) => each.level === level).length} ${level}`).join(", "),
  shutdown: () => "the pipeline stops",
};
let status = null;
let known = { times: [], series: {}, marks: [], step: 1 }; // what /history has
let actions = { actions: [], recent: [] };
let range = "15m";
let heard = 0; // when, in milliseconds
let asking = new AbortController();
let watching = new AbortController(); // of messages
let watched = ""; // how they were asked for
let leftOut = 0;
const lines = [];
const messages = [];
let keys = null; // of the configuration
let letters = null; // that were asked for
let paths = []; // that the service answers
const isProcessor = () => document.body.dataset.kind === "processor";

// The screen and its search are in the address: `#/tables?find=orders`.
function place() {
  const [name, query = ""] = location.hash.replace("#/", "").split("?");
  return { name: name in SCREENS && !$(`nav a[href="#/${name}"]`).hidden ? name : "overview", query: new URLSearchParams(query) };
}

function searched(name) {
  return $(`[name=${name}]`).value.toLowerCase();
}

const holds = (wanted, ...texts) => texts.join(" ").toLowerCase().includes(wanted);

function empty(name, isEmpty) {
  $(`[data-empty=${name}]`).hidden = !isEmpty;
}

// Overview.

const lettersOf = (found) => sum(found.sinks, (each) => sum(Object.values(each.dead_letters), (count) => count));

function verdict() {
  const since = [...known.marks].reverse().find((each) => each.kind === "health")?.at;
  const lag = most(status.backends, (each) => each.lag_seconds);
  const left = least(status.backends, (each) => each.window_left_seconds);
  const log = least(status.backends, (each) => each.window_left_bytes);
  const isPaused = status.health === "degraded" && status.backends.every((each) => each.paused);
  put("verdict", isPaused ? "Paused" : HEALTH[status.health]);
  $("#verdict").dataset.health = status.health;
  put("verdict-more", [
    since ? `since ${time(since)}` : "", status.standby ?? "",
    lag === null || (lag < 1 && status.health !== "ok") ? "" : lag < 1 ? "nothing waits for longer than a second" : `${seconds(lag)} behind the source`,
    log === null ? "" : `room for ${bytes(log)} more of log`,
    left === null ? "" : `${seconds(left)} of history left`,
  ].filter(Boolean).join(" · "));
  const [share, text] = log !== null ? [log / least(status.backends, (each) => each.window_bytes), bytes(log)]
    : left !== null ? [left / Math.max(1, least(status.backends, (each) => each.window_seconds)), seconds(left)] : [null, ""];
  $("#left").hidden = share === null;
  put("left", text);
  if (share !== null) redraw($("#left-bar"), Math.round(share * 200), () => [bar(share, `${number(share * 100)} %`, share < 0.25 ? "low" : "fine")]);
}

function reasons() {
  const found = status.reasons.map((text, at) => ({ text: local(text), level: status.health, ...status.remedies[at] }));
  const count = lettersOf(status);
  if (count) found.push({ text: `${number(count)} changes were set aside as dead letters`, level: "note", do: "Look at them, mend the cause, then store them after all.", look: "#/letters" });
  if (!status.ready && !status.standby && status.health === "ok") found.push({ text: `It is not ready: ${status.unready.join("; ")}`, level: "note", do: "It begins by itself." });
  redraw($("#reasons"), found, () => found.map((each) => {
    const made = element("li", { "data-health": each.level }, element("strong", {}, each.text), element("span", {}, each.do), " ");
    if (each.action) made.append(button({ resume: "Resume", retry: "Retry", mend: "Mend", "resume-table": "Resume the table" }[each.action] ?? each.action, each.action, each.arguments), " ");
    if (each.look) made.append(element("a", { href: each.look }, "Look"), " ");
    if (each.see) made.append(link(each.see, each.text));
    return made;
  }));
}

function overview() {
  const { backends, sinks, tables } = status;
  const stored = sum(sinks, (each) => each.acknowledged);
  const tell = (name, text, isQuiet) => {
    put(name, text);
    $$(`[data-value=${name}]`).forEach((each) => { each.parentElement.dataset.quiet = Boolean(isQuiet); });
  };
  verdict();
  reasons();
  put("stored-rate", rate(isProcessor() ? sum(backends, (each) => each.rate) : sum(sinks, (each) => each.rate)));
  put("lag", seconds(most(backends, (each) => each.lag_seconds)));
  const latency = (pick) => { const found = most(sinks, pick); return found === null ? "idle" : seconds(found / 1000); };
  put("p50", latency((each) => each.latency_p50_ms));
  $("#latency").hidden = !Object.keys(known.series).some((name) => name.startsWith("latency")); // a sink of tables has none
  tell("p99", latency((each) => each.latency_p99_ms));
  // Reports of two processes: what is stored was read.
  tell("read", number(Math.max(sum(backends, (each) => each.events), stored)));
  tell("stored", number(stored));
  tell("letters", number(lettersOf(status)), !lettersOf(status));
  const stale = sum(backends, (each) => Object.values(each.gaps).filter((gap) => gap.stale).length);
  tell("stale", number(stale), !stale);
  const suspended = tables.filter((each) => each.state === "suspended").length;
  tell("suspended", number(suspended), !suspended);
  tell("ready", status.ready ? "yes" : "no", status.ready);
  tell("uptime", seconds(status.uptime_seconds), true);
  put("zone", `Times are of ${zone}.`);
  way($("#way"), status, isProcessor());
}

// Other screens.

function stateOf(backend) {
  if (backend.blocked) return { text: `stands still: ${local(backend.blocked)}`, health: "unhealthy" };
  if (backend.paused) {
    const { since, by, until } = backend.paused;
    return { text: `paused since ${time(since)} by ${by}${until ? `, until ${time(until)}` : ""}; what is read waits here`, health: "degraded" };
  }
  if (!backend.begun) return { text: "has not begun", health: "degraded" };
  return backend.connected ? { text: "connected", health: "ok" } : { text: "disconnected", health: "unhealthy" };
}

function historyLeft(each) {
  const [left, whole, said] = each.window_left_bytes !== null ? [each.window_left_bytes, each.window_bytes, bytes] : [each.window_left_seconds, each.window_seconds, seconds];
  if (left === null || !whole) return "";
  const share = left / whole;
  return { key: [said(left), Math.round(share * 100)], sort: share, make: () => [bar(share, `${said(left)} of ${said(whole)}`, share < 0.25 ? "low" : "fine")] };
}

function detail() {
  const each = status.backends.find((backend) => backend.name === (place().query.get("show") ?? (status.backends.length === 1 ? status.backends[0].name : "")));
  $("#detail").hidden = !each;
  if (!each) return;
  const shown = { newest: each.current, confirmed: each.confirmed, reader: each.reader, reconnects: each.reconnects, restarts: each.restarts, pages: each.pages, micro_batches: each.batches, buffered: each.buffered_events, ...each.details };
  const found = Object.entries(shown).filter(([, value]) => value !== null && value !== "" && value !== undefined);
  const text = (name, value) => (typeof value === "number" ? (/bytes|_size$/.test(name) ? bytes(value) : /_at$/.test(name) ? time(value) : number(value, 3)) : typeof value === "object" ? JSON.stringify(value) : String(value));
  redraw($("#detail"), [each.name, found], () => [
    element("h2", {}, `${each.name}, in its own terms`),
    element("dl", { class: "pairs" }, ...found.map(([name, value]) => element("div", {}, element("dt", {}, name.replaceAll("_", " ")), element("dd", {}, text(name, value))))),
  ]);
}

async function sources() {
  const wanted = searched("sources");
  const opened = (name) => ({ key: name, sort: name, make: () => [element("a", { href: `#/sources?show=${encodeURIComponent(name)}` }, name)] });
  fill("#backends", status.backends.filter((each) => holds(wanted, each.name, stateOf(each).text)).map((each) => [
    opened(each.name), stateOf(each),
    { text: `${seconds(each.lag_seconds)}${each.lag_bytes ? `, ${bytes(each.lag_bytes)}` : ""}`, sort: each.lag_seconds ?? -1 },
    historyLeft(each), { text: rate(each.rate), sort: each.rate ?? -1 }, each.confirmed, local(each.last_error),
    buttons(each.paused ? ["Resume", "resume", { backend: each.name }] : ["Pause", "pause", { backend: each.name }], ["Retry", "retry", { backend: each.name }]),
  ]));
  detail();
  fill("#hosts", status.backends.flatMap((each) => {
    const share = (leases) => ({ key: leases, sort: leases, make: () => [bar(leases / Math.max(1, each.leases ?? 1), `${number((100 * leases) / Math.max(1, each.leases ?? 1))} %`)] });
    return [
      ...Object.entries(each.hosts).sort().map(([host, leases]) => [each.name, host + (host === each.host ? " (this one)" : ""), { text: number(leases), sort: leases }, share(leases)]),
      ...(each.unowned ? [[each.name, "none", { text: number(each.unowned), sort: each.unowned, health: "degraded" }, ""]] : []),
    ];
  }));
  const partition = searched("partitions");
  const isCut = status.backends.some((each) => each.partition_count > each.partitions.length);
  const all = isCut && partition ? (await get("status?partitions=all")).backends : status.backends;
  const rows = all.flatMap((backend) => backend.partitions.map((row) => [backend, row]))
    .filter(([backend, row]) => holds(partition, backend.name, row.partition, backend.host, row.state, row.health))
    .sort(([, one], [, other]) => (other.lag_seconds ?? 0) - (one.lag_seconds ?? 0));
  fill("#partitions", rows.map(([backend, row]) => [
    backend.name, row.partition, { text: `${row.state}, ${row.health}`, health: row.health === "healthy" ? "ok" : "degraded" },
    backend.host, { text: seconds(row.lag_seconds), sort: row.lag_seconds ?? -1 }, row.place, local(row.last_error),
    backend.gaps[row.partition]?.stale ? buttons(["Mend", "mend", { backend: backend.name, partition: row.partition }]) : "",
  ]));
  const count = sum(status.backends, (each) => each.partition_count);
  const note = isCut && !partition ? ": those that need attention most; a search finds the others" : "";
  $("#partitions-left").textContent = `${number(Math.min(rows.length, 500))} of ${number(count)} partitions${note}`;
}

function tables() {
  const wanted = searched("tables");
  const found = status.tables.filter((each) => holds(wanted, each.backend, each.table, each.sid, each.state));
  const taken = Object.fromEntries(status.backends.map((each) => [each.name, each.snapshots.last ?? {}]));
  fill("#tables", found.map((each) => {
    // Snapshots name a table of `public` without its schema.
    const last = taken[each.backend]?.[each.table] ?? taken[each.backend]?.[each.table.replace(/^public\./, "")];
    const whose = { table: each.table, backend: each.backend };
    const stands = each.state === "suspended" || each.state === "waiting";
    const isLoading = each.rows_to_come && each.rows_loaded !== undefined;
    return [
      [each.backend, each.sid].filter(Boolean).join(" / "), each.table,
      isLoading ? { key: [each.state, each.rows_loaded], sort: each.state, make: () => [bar(each.rows_loaded / (each.rows_loaded + each.rows_to_come), `${each.state}: ${number(each.rows_loaded)} rows`)] } : { text: each.state, state: each.state },
      { text: Object.entries(each.applied ?? {}).map(([what, count]) => `${number(count)} ${what}`).join(", "), sort: sum(Object.values(each.applied ?? {}), (count) => count) },
      { text: each.rate === undefined ? "" : rate(each.rate), sort: each.rate ?? -1 },
      { text: each.last_change_seconds === undefined ? "" : `${seconds(each.last_change_seconds)} ago`, sort: each.last_change_seconds ?? Infinity },
      { text: each.files === undefined ? "" : `${number(each.files)} files, ${bytes(each.bytes)}, version ${each.version} of ${time(each.last_commit)}`, sort: each.bytes ?? -1 },
      last ? { text: `${last.state} ${time(last.at)}, ${number(last.rows)} rows`, sort: last.at } : "",
      local([each.error || each.reason, each.held ? `${number(each.held)} held` : "", each.skipped ? `${number(each.skipped)} skipped` : "", each.letters ? `${number(each.letters)} dead letters` : "", each.nulled ? `null for what does not fit: ${each.nulled.join(", ")}` : ""]
        .filter(Boolean).join("; ")),
      stands ? buttons(["Resume", "resume-table", whose], ["Resume with its rows", "resume-table", { ...whose, snapshot: true }])
        : buttons(["Snapshot", "snapshot", whose], ["Suspend", "suspend-table", whose]),
    ];
  }));
  $("#tables").classList.toggle("plain", status.tables.every((each) => each.files === undefined));
  empty("tables", !status.tables.length);
  $("#tables-left").textContent = `${number(Math.min(500, found.length))} of ${number(status.tables.length)} tables`;
}

function snapshots() {
  const running = status.backends.flatMap((backend) => backend.snapshots.current.map((run) => [backend.name, run]));
  fill("#running", running.map(([backend, run]) => [
    backend, [run.table].flat().join("."),
    { key: [run.done, run.ranges], sort: run.done / Math.max(1, run.ranges), make: () => [bar(run.done / Math.max(1, run.ranges), `${number(run.done)} of ${number(run.ranges)} ranges`)] },
    { text: number(run.rows), sort: run.rows }, run.bytes_per_second ? `${bytes(run.bytes_per_second)}/s` : "–", seconds(run.seconds_left),
    { text: run.waiting ? `waits for ${Object.entries(run.waiting).map(([name, value]) => `${name} ${local(String(value))}`).join(", ")}` : run.state, state: "running" }, buttons(["Cancel", "cancel-snapshot", { id: run.snapshot_id }]),
  ]));
  empty("running", !running.length);
  const taken = status.backends.flatMap((backend) => Object.entries(backend.snapshots.last).map(([table, last]) => [backend.name, table, last]));
  fill("#taken", taken.sort(([, , one], [, , other]) => (one.at < other.at ? 1 : -1)).map(([backend, table, last]) => [
    backend, table, { text: time(last.at), sort: last.at }, { text: last.state, state: last.state }, { text: number(last.rows), sort: last.rows }, last.snapshot_id,
  ]));
  empty("taken", !taken.length);
  const runs = status.backends.flatMap((each) => Object.entries(each.snapshots.runs));
  put("snapshot-totals", runs.length ? `Since the start: ${runs.map(([state, count]) => `${number(count)} ${state}`).join(", ")}; ${number(sum(status.backends, (each) => each.snapshots.rows))} rows.` : "");
}

function deadLetters() {
  const counts = [
    ...status.sinks.flatMap((sink) => Object.entries(sink.dead_letters).filter(([, count]) => count).map(([why, count]) => [sink.name, why, "", { text: number(count), sort: count }])),
    ...status.tables.filter((each) => each.letters).map((each) => [each.backend, each.reason, each.table, { text: number(each.letters), sort: each.letters }]),
  ];
  fill("#counts", counts);
  empty("counts", !counts.length);
  const groups = Map.groupBy ? [...Map.groupBy(letters ?? [], (each) => `${each.table}\n${each.reason}`).values()] : [];
  fill("#groups", groups.map((each) => [
    each[0].table, each[0].reason, { text: number(each.length), sort: each.length }, { text: time(each[0].stored_at), sort: each[0].stored_at },
    buttons(["Replay these", "replay", { table: each[0].table, reason: each[0].reason }]),
  ]));
  fill("#letters", (letters ?? []).map((each) => [
    each.id, { text: time(each.stored_at), sort: each.stored_at }, each.backend, each.table, each.position, each.reason, each.error,
    { key: each.id, make: () => [button("Replay", "replay", { id: String(each.id) }), element("button", { type: "button", "data-letter": each.id }, "Show row data")] },
  ]));
}

// They are followed while their screen is shown. What is refused is asked for again when the filter or
// the token changes: wrong tokens are counted.
function followed() {
  fill("#messages", messages.map((each) => [
    { text: time(each.committed_at), title: each.committed_at }, { text: each.operation, operation: each.operation }, each.table, each.key,
    {
      key: each.sequence,
      make: () => [
        ...each.columns.slice(0, COLUMNS).flatMap(([name, old, now]) => [element("span", { class: "column" }, element("b", {}, name), " ", ...(old ? [element("del", {}, old), now ? " → " : ""] : []), now), " "]),
        ...(each.columns.length > COLUMNS ? [element("small", {}, `and ${each.columns.length - COLUMNS} more`)] : []),
      ],
    },
    { key: each.sequence, make: () => [element("details", {}, element("summary", {}, `no. ${each.sequence}`), element("pre", {}, pretty(each)))] },
  ]));
  empty("messages", !messages.length);
  const wanted = `messages?${new URLSearchParams(new FormData($("#filter")))}`;
  if (wanted === watched) return;
  unfollow();
  watched = wanted;
  if (!hasToken()) return say(needed("Messages show row data"));
  say("");
  follow(wanted, watching.signal, (_, found) => {
    if (found.error) return say([found.error, found.hint].filter(Boolean).join(": "), true);
    messages.unshift(...found.messages.reverse());
    messages.splice(MESSAGES);
    leftOut += found.left_out;
    $("#left-out").textContent = `${number(leftOut)} left out`;
    return draw();
  }).then(() => { watched = ""; }, (error) => {
    if (error instanceof TypeError) watched = "";
    else if (error.name !== "AbortError") say(error.message, true);
  });
}

function pretty({ change, size }) {
  return size > new TextEncoder().encode(change).length ? `${change} …` : JSON.stringify(JSON.parse(change), null, 2);
}

function needed(why) {
  const none = actions.actions.find((each) => each.why.startsWith("set ops.token"));
  return `${why}: ${none ? "this pipeline has no ops.token; set one in its file" : "enter the token (ops.token)"}.`;
}

function unfollow() {
  watching.abort();
  watching = new AbortController();
  watched = "";
  leftOut = 0;
  messages.length = 0;
}

// It is asked for once each time that its screen is opened; `draw` comes each second.
async function configuration() {
  keys ??= await get("configuration");
  const wanted = searched("keys");
  const isAll = $("[name=defaults]").checked || wanted;
  const text = (value) => (value === null ? "" : typeof value === "string" ? value : JSON.stringify(value));
  $("#versions").textContent = Object.entries(keys.versions).map((each) => each.join(" ")).join(" · ");
  const shown = keys.keys.filter(({ key, value, default: usual, meaning }) => (isAll || text(value) !== text(usual)) && holds(wanted, key, text(value), meaning));
  const code = (meaning) => meaning.split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part));
  redraw($("#keys"), shown, () => [...new Set(shown.map((each) => groupOf(each.key)))].map((group) => element("section", {}, element("h2", {}, group), element("table", {},
    element("thead", {}, element("tr", {}, ...["Key", "Value", "Default", "Meaning"].map((head) => element("th", {}, head)))),
    element("tbody", {}, ...shown.filter((each) => groupOf(each.key) === group).map(({ key, value, default: usual, meaning }) => element("tr", {},
      element("td", { "data-label": "Key" }, key), element("td", { "data-label": "Value", "data-state": text(value) === text(usual) ? "default" : "set" }, text(value)),
      element("td", { "data-label": "Default" }, text(usual)), element("td", { "data-label": "Meaning" }, ...code(meaning)))))))));
}

function groupOf(key) {
  return key.includes(".") ? key.split(".")[0] : "pipeline";
}

function findings(found) {
  const shown = (level) => found.filter((each) => each.level === level).map((each) => element("li", { "data-level": level },
    element("b", {}, level), " ", element("strong", {}, each.subject), ` ${each.message}`, ...(each.remedy ? [element("span", {}, each.remedy)] : []), ...(each.code ? [element("small", {}, each.code)] : [])));
  const fine = shown("ok");
  $("#findings").replaceChildren(...shown("error"), ...shown("warning"), element("li", {}, element("details", {}, element("summary", {}, `${fine.length} ok`), element("ul", {}, ...fine))));
}

function events() {
  fill("#marks", [...known.marks].sort((one, other) => other.at - one.at).map((each) => [{ text: time(each.at), sort: each.at }, { text: each.kind, health: each.level }, local(each.text)]));
  const gaps = status.backends.flatMap((backend) => Object.entries(backend.gaps).flatMap(([partition, each]) => each.gaps.map((gap) => [gap.at, backend.name, partition, gap.cause, gap.detail]))).sort().reverse();
  fill("#gaps", gaps.map(([at, ...rest]) => [{ text: time(at), sort: at }, ...rest]));
  empty("gaps", !gaps.length);
  fill("#actions", actions.recent.map((each) => [
    { text: time(each.at), sort: each.at }, `${each.action} ${Object.values(each.arguments).filter((value) => value !== null).join(" ")}`, each.by,
    { text: each.state, state: each.state }, each.state === "failed" ? `${each.error} ${each.hint}` : each.state === "done" ? said(each) : "",
  ]));
  empty("actions", !actions.recent.length);
  const log = $("#log");
  const text = lines.filter((each) => each.event !== "METRICS").map((each) => {
    const { timestamp, level, event, ...rest } = each;
    return [time(timestamp), level, event, ...Object.entries(rest).map(([name, value]) => `${name}=${JSON.stringify(value)}`)].join(" ");
  }).reverse().join("\n");
  if (log.textContent !== text) log.textContent = text;
}

const SCREENS = { overview, sources, tables, map, snapshots, letters: deadLetters, messages: followed, configuration, events };

async function draw() {
  const now = place().name;
  $$("[data-screen]").forEach((each) => { each.hidden = each.dataset.screen !== now; });
  $$("nav a").forEach((each) => {
    if (each.hash === `#/${now}`) each.setAttribute("aria-current", "page"); else each.removeAttribute("aria-current");
  });
  if (now !== "messages" && watched) unfollow();
  if (now !== "configuration") keys = null;
  if (!status || document.body.dataset.connection !== "live") return;
  try {
    await SCREENS[now]();
  } catch (error) {
    if (!(error instanceof TypeError)) say(error.message, true); // else the connection's state says it
  }
  permit();
}

async function drawCharts() {
  if (!["overview", "events"].includes(place().name) || document.hidden || document.body.dataset.connection !== "live") return;
  known = await get(`history?range=${range}`);
  if (place().name !== "overview") return;
  charts(known);
  $$("[data-curve]").forEach((each) => curve(each, known, each.dataset.curve, each.dataset.curve === "stored"));
}

// What the service says.

function take(kind, found) {
  if (kind === "status") show(found);
  if (kind === "log") {
    lines.push(found);
    lines.splice(0, lines.length - 500);
  }
}

function titled(health, text) {
  const pill = $("[data-value=health]");
  [pill.textContent, pill.dataset.health] = [text, health];
  document.title = `${status?.name ?? "penstock"}: ${text}`;
  const icon = health === "ok" || health === "standby" ? "ok.svg" : "bad.svg";
  if ($("link[rel=icon]").getAttribute("href") !== icon) $("link[rel=icon]").setAttribute("href", icon);
}

function show(found) {
  heard = Date.now();
  if (document.body.dataset.connection !== "live") {
    document.body.dataset.connection = "live";
    say("");
    discover();
  }
  status = found;
  put("name", status.name);
  titled(status.health, status.health);
  draw();
}

async function listen() {
  asking = new AbortController();
  lines.length = 0;
  try {
    await follow("events", asking.signal, take);
  } catch (error) {
    if (error.status !== 503) throw error;
    show(await get("status"));
    await new Promise((done) => setTimeout(done, POLL));
  }
}

async function listenForEver() {
  for (;;) {
    let why = "";
    try {
      await listen();
    } catch (error) {
      why = error.name === "AbortError" || error instanceof TypeError ? "" : error.message;
    }
    if (Date.now() - heard > SILENT) lost(why);
    await new Promise((done) => setTimeout(done, 1000));
  }
}

function lost(why) {
  document.body.dataset.connection = "lost";
  const since = heard ? `since ${time(heard / 1000)}` : "";
  titled("lost", `lost ${since}`.trim());
  put("verdict", why ? "The service does not show itself" : "The service does not answer");
  $("#verdict").dataset.health = "lost";
  put("verdict-more", since);
  say(why || `The service does not answer ${since}; trying again.`, true);
}

setInterval(() => {
  if (heard && Date.now() - heard > SILENT) {
    lost("");
    asking.abort();
  }
}, 1000);

// What this service has: a processor has no actions, and not every sink a map or a stream.
async function discover() {
  try {
    paths = (await get("")).endpoints.map((each) => each.path);
    $$("[data-needs]").forEach((each) => { each.hidden = !paths.includes(each.dataset.needs); });
    if (!paths.includes("/actions")) document.body.dataset.kind = "processor";
    draw();
    await refresh();
  } catch (error) {
    say(error.message, true);
  }
}

// What may be pressed.
function permit() {
  const allowed = Object.fromEntries(actions.actions.map((each) => [each.action, each]));
  $$("[data-action]").forEach((each) => {
    const action = allowed[each.dataset.action];
    each.disabled = !action?.allowed;
    each.title = action ? action.why || action.what : "";
  });
}

async function refresh() {
  try {
    if (paths.includes("/actions")) actions = await get("actions");
    permit();
    await drawCharts();
    if (place().name === "events" && status) events();
  } catch (error) {
    if (!(error instanceof TypeError)) say(error.message, true);
  }
}

setInterval(() => { if (!document.hidden) refresh(); }, POLL);

// Actions.

function confirmed(action, given) {
  if (!(action in DANGEROUS)) return Promise.resolve(true);
  const what = Object.values(given).filter((value) => typeof value === "string" && value).join(", ");
  $("#question").textContent = what ? `${action}: ${what}?` : `${action}?`;
  $("#consequence").textContent = DANGEROUS[action];
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "confirm"), { once: true }));
}

function said({ action, result, arguments: given }) {
  return DONE[action]?.(result, given) ?? JSON.stringify(result);
}

async function act(action, given) {
  if (!(await confirmed(action, given))) return;
  const begun = await send("POST", `actions/${action}`, given);
  say(`${action} has begun`);
  for (let tries = 0; tries < 120; tries += 1) {
    await new Promise((done) => setTimeout(done, 500));
    actions = await get("actions");
    const found = actions.recent.find((each) => each.id === begun.id);
    if (!found || found.state === "running") continue;
    const failed = found.state === "failed";
    say(failed ? `${action} failed: ${found.error} ${found.hint}` : `${action} is done: ${said({ ...found, arguments: given })}`, failed);
    if (action === "check" && !failed) findings(found.result.findings);
    if (action === "replay" && letters) showLetters();
    break;
  }
  refresh();
}

async function showLetters() {
  try {
    letters = await get("letters");
    say(letters.length ? "" : "There is no dead letter now.");
    draw();
  } catch (error) {
    say(error.status === 401 && !hasToken() ? needed("Dead letters show row data") : error.message, true);
  }
}

async function one(id) {
  try {
    $("#letter").textContent = JSON.stringify(await get(`letters/${encodeURIComponent(id)}`), null, 2);
    $("#letter").hidden = false;
    $("#letter").scrollIntoView({ block: "nearest" });
  } catch (error) {
    say(error.message, true);
  }
}

// All that a report of a defect needs; no row data, and no secret: the service shows none.
async function report() {
  const { keys: all, versions } = await get("configuration").catch(() => ({ keys: [], versions: { penstock: status.version } }));
  const set = all.filter((each) => JSON.stringify(each.value) !== JSON.stringify(each.default));
  const text = [
    `${status.name}: ${status.health}, up ${seconds(status.uptime_seconds)}, ${new Date().toISOString()}`, ...status.reasons.map((each) => `* ${each}`), "",
    Object.entries(versions).map((each) => each.join(" ")).join(", "), wayText(), "",
    "What happened:", ...known.marks.slice(-30).map((each) => `${new Date(each.at * 1000).toISOString()} ${each.kind} ${each.text}`), "",
    "Configuration:", ...set.map((each) => `${each.key}: ${JSON.stringify(each.value)}`), "",
    "Log:", ...lines.filter((each) => each.event !== "METRICS").slice(-50).map((each) => JSON.stringify(each)), "",
    JSON.stringify({ ...status, tables: status.tables.slice(0, 50) }),
  ].join("\n");
  try {
    await navigator.clipboard.writeText(text);
    say("The report is in the clipboard. It has names of tables and servers, and no rows.");
  } catch {
    $("#text textarea").value = text; // without TLS a page may not write the clipboard
    $("#text").showModal();
    $("#text textarea").select();
  }
}

document.addEventListener("click", (event) => {
  const letter = event.target.closest("[data-letter]");
  if (letter) one(letter.dataset.letter);
  const pressed = event.target.closest("[data-action]");
  if (!pressed) return;
  const form = pressed.closest("form");
  if (form && !form.reportValidity()) return;
  event.preventDefault();
  const given = form ? Object.fromEntries(new FormData(form)) : JSON.parse(pressed.dataset.given ?? "{}");
  act(pressed.dataset.action, given).catch((error) => say(`${pressed.dataset.action}: ${error.message}`, true));
});

$$("[data-range]").forEach((pressed) => pressed.addEventListener("click", () => {
  range = pressed.dataset.range;
  $$("[data-range]").forEach((each) => each.setAttribute("aria-pressed", String(each === pressed)));
  drawCharts().catch((error) => say(error.message, true));
}));

function moved() {
  const { name, query } = place();
  const input = $(`[data-screen=${name}] input[type=search]`);
  if (input && query.has("find")) input.value = query.get("find");
  say("");
  draw();
  refresh();
}

$$("input[type=search]:not(#filter input)").forEach((input) => input.addEventListener("input", () => {
  const { name, query } = place();
  if (input === $(`[data-screen=${name}] input[type=search]`)) {
    if (input.value) query.set("find", input.value); else query.delete("find");
    history.replaceState(null, "", `#/${name}${query.size ? `?${query}` : ""}`);
  }
  draw();
}));
$("[name=defaults]").addEventListener("change", draw);
$("#filter").addEventListener("change", draw);
$("#filter").addEventListener("submit", (event) => event.preventDefault());
$("#report").addEventListener("click", () => { if (status) report().catch((error) => say(error.message, true)); });
$("#show-letters").addEventListener("click", showLetters);
addEventListener("hashchange", moved);
addEventListener("resize", () => { draw(); drawCharts().catch(() => {}); });
document.addEventListener("sorted", draw);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
onToken(() => {
  asking.abort();
  watched = "";
  refresh();
});
moved();
listenForEver();
