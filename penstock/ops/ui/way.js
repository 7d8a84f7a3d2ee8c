// The way of a change, drawn: source, reader, Spark, sink and target, with what flows between them,
// what waits in each, and what stands still. On a narrow screen it goes down.

import { $, bytes, number, rate, redraw, seconds, sum } from "./page.js";

const SIZE = { width: 178, height: 74, across: 84, down: 34 };
const ROWS = 4; // that are drawn of a column

function shape(kind, more, ...inner) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  Object.entries(more).forEach(([name, value]) => made.setAttribute(name, value));
  made.append(...inner);
  return made;
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// The nodes of each column: a title, lines, a state; `to`: of a flow to the next column.
export function columns(status, isProcessor) {
  const { backends, sinks, tables } = status;
  const state = (each) => (each.blocked || (!each.connected && each.begun && !each.paused) ? "unhealthy" : each.paused || !each.begun ? "degraded" : "ok");
  const source = backends.map((each) => ({
    title: each.name, state: state(each), flow: rate(each.rate),
    lines: [each.blocked ? "stands still" : each.connected ? "connected" : each.begun ? "disconnected" : "has not begun",
      each.lag_bytes ? `${bytes(each.lag_bytes)} wait` : each.lag_seconds > 1 ? `${seconds(each.lag_seconds)} behind` : "nothing waits"],
  }));
  const reader = backends.map((each) => ({
    title: isProcessor ? each.host ?? "this host" : "reader", state: each.paused ? "degraded" : each.begun ? "ok" : "degraded", flow: rate(each.paused ? 0 : each.rate),
    lines: [each.paused ? "paused" : isProcessor ? `${number(Object.keys(each.hosts).length)} hosts, ${number(each.leases)} leases` : `${number(each.partition_count)} ${each.partition_count === 1 ? "partition" : "partitions"}`,
      each.buffered_events ? `${number(each.buffered_events)} wait here` : "nothing waits"],
  }));
  if (isProcessor) return [source, reader];
  const batch = status.last_batch;
  const spark = [{
    title: "Spark", state: backends.some((each) => each.begun) ? "ok" : "degraded", flow: rate(sum(sinks, (each) => each.rate)),
    lines: batch ? [`micro-batch of ${number(batch.rows)}`, `${seconds(batch.duration_ms / 1000)} long`] : ["no micro-batch yet", ""],
  }];
  const sink = sinks.map((each) => ({
    title: each.name, flow: rate(each.rate),
    state: each.connected === false || each.breaker === "open" ? "unhealthy" : each.pressure && each.pressure !== "normal" ? "degraded" : "ok",
    lines: [each.connected === false ? "disconnected" : each.pressure && each.pressure !== "normal" ? `back-pressure: ${each.pressure}` : each.delivery ?? "connected",
      each.latency_p50_ms === null ? "" : `p50 ${seconds(each.latency_p50_ms / 1000)}`],
  }));
  const inSink = tables.filter((each) => each.target);
  const count = (...states) => inSink.filter((each) => states.includes(each.state)).length;
  const target = sinks.map((each) => {
    const { stream, database, path } = each.details;
    const bad = count("waiting", "suspended");
    if (inSink.length) {
      return { title: `${number(inSink.length)} tables`, state: bad ? "degraded" : "ok", lines: [`${number(count("live"))} live, ${number(count("loading"))} loading`, bad ? `${number(bad)} do not go on` : ""] };
    }
    return { title: String(stream ?? database ?? path ?? "target"), state: "ok", lines: [`${number(each.acknowledged)} stored`, ""] };
  });
  return [source, reader, spark, sink, target].filter((each) => each.length);
}

const KINDS = ["source", "reader", "", "sink", "target"];

export function way(place, status, isProcessor) {
  const isNarrow = place.clientWidth < 700;
  const found = columns(status, isProcessor);
  redraw(place, [found, isNarrow], () => [drawing(found, isNarrow)]);
}

function drawing(found, isNarrow) {
  const { width, height, across, down } = SIZE;
  const rows = isNarrow ? 2 : ROWS;
  const cut_to = found.map((nodes) => (nodes.length > rows
    ? [...nodes.slice(0, rows - 1), { title: `${nodes.length - rows + 1} more`, state: nodes.slice(rows - 1).some((each) => each.state !== "ok") ? "degraded" : "ok", lines: ["", ""], flow: "" }] : nodes));
  const longest = Math.max(...cut_to.map((nodes) => nodes.length));
  const at = (column, row, count) => {
    const middle = row + (longest - count) / 2;
    return isNarrow ? { x: 4 + middle * (width + 14), y: 4 + column * (height + down) } : { x: 4 + column * (width + across), y: 4 + middle * (height + 14) };
  };
  const whole = isNarrow
    ? { width: longest * (width + 14) - 6, height: cut_to.length * (height + down) - down + 8 }
    : { width: cut_to.length * (width + across) - across + 8, height: longest * (height + 14) - 6 };
  const lines = [];
  const boxes = [];
  cut_to.forEach((nodes, column) => nodes.forEach((node, row) => {
    const here = at(column, row, nodes.length);
    const next = cut_to[column + 1] ?? [];
    const sameLane = next.length === nodes.length;
    next.forEach((_, other) => {
      if (sameLane && other !== row) return;
      const there = at(column + 1, other, next.length);
      const moves = node.flow && !["0/s", "–", ""].includes(node.flow);
      const path = isNarrow
        ? `M${here.x + width / 2},${here.y + height} C${here.x + width / 2},${here.y + height + down / 2} ${there.x + width / 2},${there.y - down / 2} ${there.x + width / 2},${there.y}`
        : `M${here.x + width},${here.y + height / 2} C${here.x + width + across / 2},${here.y + height / 2} ${there.x - across / 2},${there.y + height / 2} ${there.x},${there.y + height / 2}`;
      lines.push(shape("path", { d: path, class: moves ? "flow moves" : "flow", "data-state": node.state }));
    });
    if (next.length && node.flow) {
      lines.push(isNarrow ? shape("text", { x: here.x + width / 2 + 8, y: here.y + height + down / 2 + 4, class: "rate" }, node.flow)
        : shape("text", { x: here.x + width + across / 2, y: here.y + height / 2 - 8, class: "rate", "text-anchor": "middle" }, node.flow));
    }
    boxes.push(shape("g", { class: "node", "data-state": node.state, transform: `translate(${here.x},${here.y})` },
      shape("title", {}, [node.title, ...node.lines].filter(Boolean).join(", ")),
      shape("rect", { width, height, rx: 9 }), shape("circle", { cx: 16, cy: 19, r: 5 }),
      shape("text", { x: 28, y: 24, class: "name" }, cut(node.title, 19)),
      ...node.lines.map((line, number) => shape("text", { x: 14, y: 44 + 18 * number }, cut(line, 25)))));
  }));
  const said = cut_to.map((nodes, column) => `${KINDS[column] || ""} ${nodes.map((node) => [node.title, ...node.lines, node.flow].filter(Boolean).join(", ")).join("; ")}`.trim()).join(". Then ");
  const made = shape("svg", { viewBox: `0 0 ${whole.width} ${whole.height}`, ...(isNarrow ? whole : {}), role: "img", "aria-label": `The way of a change: ${said}` }, ...lines, ...boxes);
  if (isNarrow) made.classList.add("narrow");
  return made;
}

export const wayText = () => $("#way svg")?.getAttribute("aria-label") ?? "";
