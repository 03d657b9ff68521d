// The streams of all tabs, in a shared worker.
import { Hub } from "./streamhub.js";

const BASE = import.meta.url.split("/static/")[0] + "/api/v1";
const hub = new Hub((path) => new EventSource(BASE + path));

addEventListener("connect", ({ ports: [port] }) => {
  const want = hub.attach((message) => port.postMessage(message));
  port.onmessage = ({ data: { wants, focused } }) => want(wants, focused);
});
setInterval(() => hub.sweep(), 10_000);
