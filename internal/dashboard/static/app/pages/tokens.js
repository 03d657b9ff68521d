// API tokens: names, roles and expiry.
import { html, useState } from "../html.js";
import {
  Page, Card, Badge, Button, Copy, Dialog, Empty, ErrorBox, Field, Icon, Select, Skeleton, Table, Text, Time, confirm, toast, useLoad,
} from "../ui.js";
import { api } from "../api.js";
import { can, session } from "../session.js";
import { clock, inert } from "../format.js";
import { namespace } from "../router.js";

const actTones = { pending: "warn", running: "warn", done: "ok", expired: "plain", rejected: "bad" };
const tones = { active: "ok", expired: "plain", revoked: "bad" };
const roles = [["watcher", "Watcher: states and counts of runs"], ["viewer", "Viewer: sees everything"],
  ["operator", "Operator: runs, plans, endpoints, dead letters"],
  ["admin", "Admin: also tokens, and deleting plans"]];
const lives = [["720h", "30 days"], ["168h", "a week"], ["24h", "a day"], ["2160h", "90 days"], ["8760h", "a year"], ["", "no end"]];

export default function Tokens() {
  const may = can("admin");
  const { data, error, reload } = useLoad(may ? "/tokens" : "", [may]);
  const [creating, setCreating] = useState(false);
  const off = session.value.auth !== "on";
  if (!may) {
    return html`<${Page} title="Tokens"><${Card}><${Empty} icon="key" title="For admins only"><p>${Object.values(session.value.grants || {}).includes("admin")
      ? "Select a namespace in which you are admin." : `Your role is ${session.value.role || "none"}; tokens are made and revoked by an admin.`}</p><//><//><//>`;
  }
  return html`<${Page} title="Tokens" test="tokens-page" actions=${html`<${Button} kind="primary" icon="start" test="new-token"
      onClick=${() => setCreating(true)}>New token<//>`}>
    ${off && html`<p class="notice"><${Icon} name="info"/><span>No one has to log in on this server: it listens on loopback only. Tokens
      count from the moment that it is started with <code>--auth on</code>.</span></p>`}
    ${session.value.role === "admin" && html`<${Acts} onDone=${reload}/>`}
    <${ErrorBox} error=${error} retry=${reload}/>
    ${!data && !error && html`<${Card}><${Skeleton} lines=${4}/><//>`}
    ${data && html`<${Card} flush label="Tokens"><${Table} caption="Tokens" test="tokens" rows=${data.tokens || []} rowKey=${(t) => t.id}
      rowClass=${(t) => (t.state === "active" ? "" : "faded")} columns=${columns(reload)} empty=${html`<${Empty} icon="tokens"
        title="No tokens yet" test="no-tokens"><p>A token lets a script, the command line or a person in, with a role. It is shown once,
        when it is made.</p><//>`}/><//>`}
    ${creating && html`<${Create} onClose=${() => { setCreating(false); reload(); }}/>`}
  <//>`;
}

// Acts lists what another admin must confirm (serve --four-eyes). Nobody sees a button that the server would refuse.
function Acts({ onDone }) {
  const { data, error, reload } = useLoad("/acts");
  const settle = async (act, verb, danger) => {
    const done = await confirm({ title: `${verb}: ${act.what}?`, action: verb, danger, test: "act-dialog",
      body: html`<p><${Text} max=${60}>${act.asked_by}<//> requested it.</p><${Whole} act=${act}/>`,
      act: () => api.post(`/acts/${act.id}/${verb.toLowerCase()}`, {}, { key: "" }) });
    if (!done) return;
    const secret = done.answer?.secret;
    if (secret) await confirm({ title: "Copy the token now", action: "I have it", test: "act-secret", body: `It is shown this once: ${secret}` });
    reload();
    onDone();
  };
  if (error) return html`<${ErrorBox} error=${error} retry=${reload}/>`;
  if (!data || (!data.acts.length && !data.four_eyes.length)) return null;
  return html`<${Card} flush label="Acts that another admin confirms"><${Table} caption=${"Acts that another admin confirms: " + data.four_eyes.join(", ")}
    test="acts" rows=${data.acts} rowKey=${(a) => a.id} rowClass=${(a) => (open(a) ? "" : "faded")}
    empty=${html`<${Empty} icon="key" title="Nothing waits for a second admin"/>`} columns=${[
      { key: "what", title: "Act", render: (a) => html`<strong>${a.what}</strong><${Whole} act=${a}/>` },
      { key: "state", title: "State", render: (a) => html`<${Badge} tone=${actTones[a.state]}>${a.state}<//>${a.settled_by && html` <span class="muted">by
        <${Text} max=${30}>${a.settled_by}<//></span>`}` },
      { key: "by", title: "Asked by", render: (a) => html`<${Text} max=${30}>${a.asked_by}<//>` },
      { key: "until", title: "Until", render: (a) => html`<${Time} at=${a.expires_at}/>` },
      { key: "do", srTitle: "Actions", label: "", align: "right", render: (a) => open(a) && html`${!a.yours && html`<${Button} small
        kind="primary" test="confirm-act" onClick=${() => settle(a, "Confirm", true)}>Confirm<//> `}<${Button} small
        test="reject-act" onClick=${() => settle(a, "Reject")}>${a.yours ? "Withdraw" : "Reject"}<//>` },
    ]}/><//>`;
}

const open = (a) => a.state === "pending" || a.state === "running";

// Whole shows all that a confirmation would carry out.
const Whole = ({ act }) => html`<p><code><${Text}>${act.method + " " + act.path + (act.input ? " " + JSON.stringify(act.input) : "")}<//></code></p>
  ${act.preview && html`<p class="muted">Preview: <${Text}>${JSON.stringify(act.preview)}<//></p>`}`;

const columns = (reload) => [
  { key: "name", title: "Name", render: (t) => html`<strong><${Text} max=${60}>${t.name}<//></strong>` },
  { key: "role", title: "Role", render: (t) => [...(t.role === "none" ? [] : [[t.role, ""]]), ...Object.entries(t.grants || {}).map(([at, role]) => [role, " in " + at])]
    .map(([role, at]) => html`<${Badge} tone=${{ admin: "warn", operator: "info" }[role] || "plain"}>${role}${at}<//> `) },
  { key: "state", title: "State", render: (t) => html`<${Badge} tone=${tones[t.state]} title=${t.revoked_at &&
    `${clock(t.revoked_at, { date: true })} by ${inert(t.revoked_by)}`}>${t.state}<//>` },
  { key: "used", title: "Last used", render: (t) => (t.last_used_at ? html`<${Time} at=${t.last_used_at}/>` : html`<span class="muted">never</span>`) },
  { key: "expires", title: "Expires", render: (t) => (t.expires_at ? html`<${Time} at=${t.expires_at}/>` : html`<span class="muted">never</span>`) },
  { key: "created", title: "Made", hide: "narrow", render: (t) => html`<${Time} at=${t.created_at}/> <span class="muted">by <${Text} max=${30}>${t.created_by}<//></span>` },
  { key: "revoke", srTitle: "Actions", label: "", align: "right", render: (t) => t.state === "active" && html`<${Button} small test="revoke"
    label=${"Revoke " + inert(t.name, 60)} onClick=${() => revoke(t, reload)}>Revoke<//>` },
];

async function revoke(token, reload) {
  const done = await confirm({
    title: `Revoke ${inert(token.name, 60)}?`, action: "Revoke", danger: true, test: "revoke-dialog",
    body: "Its users are refused within seconds, in open pages and streams too. This cannot be undone.",
    act: () => api.post(`/tokens/${token.id}/revoke`, {}),
  });
  if (!done) return;
  toast(`${inert(token.name, 60)} is revoked`);
  reload();
}

// place is the namespace in which a new token gets its role; "" is the whole installation.
const place = () => namespace() || (session.value.role === "admin" ? "" : Object.keys(session.value.grants || {})[0] || "");

// Create creates a token and shows its secret once. The secret exists in this dialog only.
function Create({ onClose }) {
  const at = place();
  const [form, setForm] = useState({ name: "", role: "operator", expires_in: "720h" });
  const [made, setMade] = useState(null);
  const [error, setError] = useState(null);
  const set = (changes) => {
    setForm({ ...form, ...changes });
    setError(null);
  };
  const create = async (e) => {
    e?.preventDefault();
    try {
      setMade(await api.post("/tokens", { name: form.name.trim(), ...(at ? { role: "none", grants: { [at]: form.role } } : { role: form.role }), ...(form.expires_in ? { expires_in: form.expires_in } : {}) },
        { key: "" }));
    } catch (err) {
      setError(err);
    }
  };
  if (made) {
    return html`<${Dialog} title="Copy the token now" firm onClose=${onClose} test="token-made"
        footer=${html`<${Button} kind="primary" onClick=${onClose} test="done">I have it<//>`}>
      <p>This is the only time that it is shown. The server keeps a digest, and cannot tell it again.</p>
      <div class="secret"><code data-test="secret">${made.secret}</code><${Copy} text=${made.secret} label="Copy the token" small=${false} test="copy-secret"/></div>
      <p class="muted">With it: <code>TRANCHE_TOKEN=… tranche run list</code>, or <code>Authorization: Bearer …</code>, or the login of this dashboard.</p><//>`;
  }
  const wrong = (name) => (error && new RegExp(`\\b${name}\\b`).test((error.errors?.[0]?.location || "") + " " + (error.detail || ""))
    ? error.errors?.[0]?.message || error.detail : "");
  const placed = wrong("name") || wrong("expires_in");
  return html`<${Dialog} title="New token" onClose=${onClose} test="token-dialog" footer=${html`<${Button} onClick=${onClose}>Cancel<//>
      <${Button} kind="primary" disabled=${!form.name.trim()} onClick=${create} test="create">Make it<//>`}>
    <form class="column" onSubmit=${create}>
      <${Field} label="Name" hint="who or what uses it, for the audit log" error=${wrong("name")}><input value=${form.name} maxlength="100" autofocus
        autocomplete="off" data-test="token-name" onInput=${(e) => set({ name: e.currentTarget.value })}/><//>
      <${Field} label=${at ? "Role in " + at : "Role"}><${Select} value=${form.role} onChange=${(role) => set({ role })} options=${roles} test="token-role"/><//>
      <${Field} label="Good for" error=${wrong("expires_in")}><${Select} value=${form.expires_in} onChange=${(expires_in) => set({ expires_in })}
        options=${lives} test="token-life"/><//>
      ${!placed && html`<${ErrorBox} error=${error}/>`}
    </form><//>`;
}
