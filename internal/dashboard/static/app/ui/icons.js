import { html } from "../html.js";

// 16 × 16 paths with a stroke of 1.5.
const shapes = {
  runs: "M2.5 4h11M2.5 8h7.5M2.5 12h4",
  plans: "M4 2.5h5.5L13 6v7.5H4zM9.5 2.5V6H13M6.5 9h4M6.5 11.2h4",
  collectors: "M2.5 9.5h3l1 2h3l1-2h3v4h-11zM8 2v5.5M5.8 5.5 8 7.7l2.2-2.2",
  trackers: "M2.5 2.5h4.5v4.5h-4.5zM9 2.5h4.5v4.5h-4.5zM2.5 9h4.5v4.5h-4.5zM9.2 11.4l1.6 1.6 2.8-3.4",
  endpoints: "M5 6.5v-4M11 6.5v-4M3.5 6.5h9V8a4.5 4.5 0 0 1-9 0zM8 12.5v2",
  nodes: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  letters: "M2.5 4h11v8.5h-11zM2.5 4.5 8 9l5.5-4.5",
  audit: "M8 2.5a5.5 5.5 0 1 1-5.2 3.7M2.5 2.8v3.6h3.6M8 5v3.2l2.2 1.4",
  health: "M2 8.5h2.8l1.6-4.5 3 8 1.6-3.5h3",
  wall: "M2 3h12v8H2zM5.5 13.5h5",
  bell: "M3 11.5c1.2-1 1.5-2.2 1.5-4.5a3.5 3.5 0 0 1 7 0c0 2.3.3 3.5 1.5 4.5zM6.7 13.5h2.6M8 2v1.5",
  tokens: "M9 7a3.2 3.2 0 1 0-1.6 2.6L8.6 8.4M8 7.8l5.5 5.7M11 10.8l1.6-1.6",
  api: "M5.5 4.5 2 8l3.5 3.5M10.5 4.5 14 8l-3.5 3.5",
  start: "M8 3v10M3 8h10",
  play: "M5 3.2v9.6L12.5 8z",
  pause: "M5.2 3.5v9M10.8 3.5v9",
  stop: "M4 4h8v8H4z",
  check: "M3 8.5 6.5 12 13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  warn: "M8 2.5 14 13H2zM8 6.5v3M8 11.3v.01",
  info: "M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2M8 7.2v3.6M8 5v.01",
  search: "M7 2.8a4.2 4.2 0 1 1 0 8.4 4.2 4.2 0 0 1 0-8.4M10.2 10.2 13.5 13.5",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  sun: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6M8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  moon: "M13 9.6A5.6 5.6 0 0 1 6.4 3a5.6 5.6 0 1 0 6.6 6.6z",
  auto: "M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2M8 2.2v11.6M8 5l3.6 6M8 2.2 13 11",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  down: "M4 6.2 8 10l4-3.8",
  right: "M6.2 4 10 8l-3.8 4",
  left: "M9.8 4 6 8l3.8 4",
  upload: "M8 10.5v-8M4.8 5.5 8 2.3l3.2 3.2M2.5 10.5v3h11v-3",
  download: "M8 2.5v8M4.8 7.5 8 10.7l3.2-3.2M2.5 10.5v3h11v-3",
  reload: "M13.3 8A5.3 5.3 0 1 1 11.5 4M13.5 2v3.2h-3.2",
  clock: "M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2M8 4.8V8l2.2 1.6",
  key: "M9 7a3.2 3.2 0 1 0-1.6 2.6M8 7.8l5.5 5.7",
  user: "M8 2.8a2.7 2.7 0 1 1 0 5.4 2.7 2.7 0 0 1 0-5.4M2.8 13.5c.6-2.3 2.6-3.6 5.2-3.6s4.6 1.3 5.2 3.6",
  out: "M6.5 2.5h-4v11h4M6 8h7.5M10.5 5l3 3-3 3",
  file: "M4 2.5h5.5L13 6v7.5H4zM9.5 2.5V6H13",
  help: "M8 2.2a5.8 5.8 0 1 1 0 11.6A5.8 5.8 0 0 1 8 2.2M6.3 6.4a1.8 1.8 0 1 1 2.5 1.6c-.6.3-.8.6-.8 1.2M8 11.2v.01",
  filter: "M2.5 3.5h11L9.5 8.5v4l-3 1v-5z",
  trash: "M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5l.5 9h6l.5-9",
  repeat: "M3 7.5V6a2 2 0 0 1 2-2h7.5M10.5 1.8 12.7 4l-2.2 2.2M13 8.5V10a2 2 0 0 1-2 2H3.5M5.5 14.2 3.3 12l2.2-2.2",
};

// Icon draws a shape. Screen readers skip it, because there is text next to it.
export function Icon({ name, size = 16 }) {
  return html`<svg class="icon" width=${size} height=${size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
    <path d=${shapes[name] || shapes.info} fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round"
      stroke-linejoin="round"/></svg>`;
}
