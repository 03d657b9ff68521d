// Filters of the list of runs that this browser keeps under a name. The address of the page has them all, to share.
import { html, useState } from "../html.js";
import { Button, Dialog, Field, Menu, toast } from "../ui.js";
import { go } from "../router.js";

const KEY = "tranche.views";

function saved() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

const keep = (views) => localStorage.setItem(KEY, JSON.stringify(views));

export function Views({ here }) {
  const [name, setName] = useState(null); // of the view to be saved; null: no dialog
  const views = saved();
  const used = Object.keys(views).find((n) => views[n] === here);
  const copy = () => navigator.clipboard?.writeText(location.href).then(() => toast("Link copied"), (err) => toast(err, { tone: "bad" }));
  const save = (e) => {
    e.preventDefault();
    keep({ ...views, [name.trim()]: here });
    setName(null);
  };
  return html`<${Menu} label="Views" test="views" kind="ghost" items=${[
    ...Object.entries(views).map(([n, search]) => ({ label: n, to: "/runs" + search, test: "view" })),
    Object.keys(views).length > 0 ? null : false,
    here !== "" && !used && { label: "Save this view…", icon: "start", test: "save-view", onClick: () => setName("") },
    used !== undefined && { label: `Forget “${used}”`, icon: "cross", test: "forget-view", onClick: () => {
      const { [used]: gone, ...rest } = views;
      keep(rest);
      go("/runs" + here);
    } },
    { label: "Copy the link", icon: "copy", onClick: copy },
  ]}>Views<//>
  ${name !== null && html`<${Dialog} title="Save this view" test="save-view-dialog" onClose=${() => setName(null)}>
    <form class="column" onSubmit=${save}><${Field} label="Name" hint="in this browser; to share it, copy the link">
      <input value=${name} maxlength="60" required autofocus data-test="view-name" onInput=${(e) => setName(e.currentTarget.value)}/><//>
      <${Button} kind="primary" type="submit" test="view-save">Save<//></form><//>`}`;
}
