// The start of the dashboard.
import { html, render } from "./html.js";
import { Shell } from "./shell.js";
import { refresh } from "./session.js";
import { listen } from "./keys.js";

listen();
await refresh();
const place = document.getElementById("app");
place.replaceChildren();
render(html`<${Shell}/>`, place);
