import { html, render, signal, useEffect, useId, useLayoutEffect, useRef } from "../html.js";
import { Button } from "./buttons.js";
import { Icon } from "./icons.js";
import { ErrorBox } from "./blocks.js";
import { useState } from "../html.js";
import { inert } from "../format.js";

// Dialog is modal while rendered. The browser's element traps and restores the focus. onClose is called for Escape,
// the cross and a click outside; with firm, for the cross only. footer: buttons at the end.
export function Dialog({ title, onClose, children, footer, wide = false, firm = false, test }) {
  const ref = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      if (dialog.open) dialog.close();
      if (before?.isConnected) before.focus();
    };
  }, []);
  const cancel = (e) => {
    e.preventDefault();
    if (!firm) onClose?.();
  };
  const outside = (e) => { if (e.target === ref.current && !firm) onClose?.(); };
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${cancel}
      onPointerDown=${outside} data-test=${test}>
    <div class="dialog-box">
      <div class="dialog-head"><h2 id=${id}>${title}</h2>
        <${Button} kind="ghost" small icon="cross" label="Close" onClick=${() => onClose?.()}/></div>
      <div class="dialog-body">${children}</div>
      ${footer && html`<div class="dialog-foot">${footer}</div>`}
    </div></dialog>`;
}

// confirm asks before an irreversible action. body is a text, or what html makes. act, if given, runs while the
// dialog is open, which shows its error. Resolves to true (or act's result), or false.
export function confirm({ title, body, action = "OK", danger = false, act, test = "confirm" }) {
  return new Promise((resolve) => {
    const place = document.createElement("div");
    document.body.append(place);
    const end = (answer) => {
      render(null, place);
      place.remove();
      resolve(answer);
    };
    render(html`<${Confirm} ...${{ title, body, action, danger, act, test, end }}/>`, place);
  });
}

function Confirm({ title, body, action, danger, act, test, end }) {
  const [error, setError] = useState(null);
  const yes = async () => {
    setError(null);
    try {
      end(act ? (await act()) ?? true : true);
    } catch (err) {
      setError(err);
    }
  };
  return html`<${Dialog} title=${title} onClose=${() => end(false)} test=${test} footer=${html`
      <${Button} onClick=${() => end(false)} test="confirm-no" autofocus=${danger}>Cancel<//>
      <${Button} kind=${danger ? "danger" : "primary"} onClick=${yes} test="confirm-yes" autofocus=${!danger}>${action}<//>`}>
    ${typeof body === "string" ? html`<p>${body}</p>` : body}
    <${ErrorBox} error=${error}/><//>`;
}

const toasts = signal([]);
let nextToast = 1;

// toast shows a message. tone: ok, warn, bad or info. Errors stay until dismissed.
export function toast(text, { tone = "ok", action, onAction } = {}) {
  const id = nextToast++;
  const said = text instanceof Error ? text.detail || text.message : text;
  toasts.value = [...toasts.value.slice(-3), { id, text: inert(said, 400), tone, action, onAction }];
  if (tone !== "bad") setTimeout(() => dropToast(id), action ? 9000 : 5000);
  return id;
}

const dropToast = (id) => { toasts.value = toasts.value.filter((t) => t.id !== id); };

// Toast is where messages appear, once in the frame. As a popover it is above dialogs too.
export function Toast() {
  const ref = useRef(null);
  const list = toasts.value;
  useEffect(() => {
    const box = ref.current;
    if (!box.showPopover) return;
    if (box.matches(":popover-open")) box.hidePopover();
    if (list.length > 0) box.showPopover();
  }, [list]);
  return html`<div class="toasts" ref=${ref} popover="manual" role="region" aria-label="Notices" aria-live="polite">
    ${list.map((t) => html`<div class=${"toast tone-" + t.tone} key=${t.id} data-test="toast">
      <${Icon} name=${{ ok: "check", warn: "warn", bad: "warn" }[t.tone] || "info"}/><span><bdi>${t.text}</bdi></span>
      ${t.action && html`<button type="button" class="btn small" onClick=${() => { dropToast(t.id); t.onAction?.(); }}>
        ${t.action}</button>`}
      <button type="button" class="btn ghost small bare" aria-label="Put away" onClick=${() => dropToast(t.id)}>
        <${Icon} name="cross"/></button></div>`)}
  </div>`;
}
