// The pace of a run, and its controls. A change applies immediately, shows the previous value, and can be undone.
import { html, useEffect, useRef, useState } from "../html.js";
import { api, conflict, segment } from "../api.js";
import { Card, Select, toast } from "../ui.js";
import { can } from "../session.js";
import { inert, num, zoned } from "../format.js";
import { Supposed } from "../parts/forecast.js";

const fields = [
  { name: "chunk", text: "Items in a request", unit: "items", auto: true, least: 1, most: 8192, steps: [0.5, 2] },
  { name: "in_flight", text: "Requests in flight", unit: "requests", auto: true, least: 1, most: 10_000, steps: [0.5, 2], slides: true },
  { name: "rate", text: "Rate limit", unit: "items/s", auto: false, least: 0, most: 1e9, zero: "no limit", steps: [0.5, 2], slides: true },
];

/** parse parses a field's text: a number, auto or no limit. Returns {value} or {error}. */
export function parse(field, text) {
  const t = text.trim().toLowerCase().replace(/[,\s_]/g, "");
  if (field.auto && t === "auto") return { value: "auto" };
  if (field.zero && (t === "" || t === "nolimit" || t === "none")) return { value: 0 };
  const value = Number(t);
  const whole = field.name === "rate" || Number.isInteger(value);
  if (t === "" || !Number.isFinite(value) || !whole || value < field.least || value > field.most) {
    return { error: `${field.name === "rate" ? "A number" : "A whole number"} from ${num(field.least)}${field.name === "rate" ? "" : ` to ${num(field.most)}`}${field.auto ? ", or auto" : ""}` };
  }
  return { value };
}

export function shown(field, settings) {
  if (field.auto && settings[field.name + "_auto"]) return "auto";
  const value = settings[field.name] ?? 0;
  return field.zero && value === 0 ? "" : String(value);
}

export function Pacing({ run, step, onStep }) {
  const name = step || run.steps[0]?.name;
  const of = run.steps.find((s) => s.name === name);
  if (!of) return null;
  const several = run.steps.length > 1;
  return html`<${Card} title="Pace" test="pacing" class="pacing" actions=${several && html`<${Select} label="Step"
      value=${name} options=${run.steps.map((s) => s.name)} onChange=${onStep} test="pacing-step" />`}>
    ${fields.map((f) => html`<${Knob} key=${name + f.name} run=${run} step=${of} field=${f} several=${several} />`)}
    <div class="pacing-run">
      <${Knob} key="priority" run=${run}
          field=${{ name: "priority", text: "Priority", unit: "", least: -1e9, most: 1e9, by: [-1, 1], slides: true }}
          value=${String(run.priority)} />
      <${Knob} key="max_failed" run=${run}
          field=${{ name: "max_failed", text: "Pause when more fail", unit: limitUnit(run), free: true, placeholder: "none" }}
          value=${run.max_failed ?? ""} />
      <${Knob} key="done_by" run=${run}
          field=${{ name: "done_by", text: "Done by", unit: run.gentle ? "gently" : "", free: true, placeholder: "none" }}
          value=${run.done_by ?? ""} />
    </div>
  <//>`;
}

const limitUnit = (run) => (run.failed_limit !== undefined && run.max_failed?.endsWith("%") ? `= ${num(run.failed_limit)} items` : "");

// Knob is a setting: typed and sent by Enter or on blur, or halved and doubled by its buttons.
function Knob({ run, step, field, value, several = false }) {
  const now = value ?? shown(field, step.settings);
  const [draft, setText] = useState(now);
  const [editing, setEditing] = useState(false);
  const text = editing ? draft : now;
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const begun = useRef(now); // what the change began from
  const [slide, setSlide] = useState(0); // of the slider, from where the setting is
  useEffect(() => {
    if (!editing) begun.current = now;
  }, [now, editing]);

  const send = async (wanted, before = begun.current, undo = false) => {
    const parsed = field.free ? { value: zoned(wanted.trim()) || "none" } : parse(field, wanted);
    setError(parsed.error ?? "");
    if (parsed.error) return;
    setSlide(0);
    setEditing(false);
    setBusy(true);
    try {
      const body = { [field.name]: parsed.value, if_was: { [field.name]: before } };
      if (step && several) body.step = step.name;
      const { after } = await api.post(`/runs/${segment(run.id)}/settings`, body);
      const has = String(after[field.name] ?? wanted);
      say(field, step, several, before, wanted, undo ? null : () => send(before || (field.free ? "none" : "0"), has, true));
    } catch (err) {
      const other = conflict(err, wanted);
      setError(other?.message ?? (err.detail || err.message));
      setText(other ? wanted : now);
      setEditing(Boolean(other));
      if (other) begun.current = other.has;
    } finally {
      setBusy(false);
    }
  };
  const begin = () => {
    if (!editing) setText(now);
    setEditing(true);
  };
  const typed = (e) => {
    setText(e.currentTarget.value);
    setError("");
    setSlide(0);
  };
  const slid = (e) => {
    const at = Number(e.currentTarget.value);
    setSlide(at);
    setText(at === 0 ? now : slidTo(field, now, at, step, run));
    setEditing(at !== 0);
  };
  const commit = () => {
    setEditing(false);
    if (![now, begun.current].includes(text.trim())) send(text);
    else setError("");
  };
  const forget = () => {
    setText(now);
    setEditing(false);
    setError("");
    setSlide(0);
  };
  // A slider that is left without its button sets nothing.
  const left = (e) => slide !== 0 && !e.currentTarget.contains(e.relatedTarget) && forget();
  const keys = (e) => {
    if (e.key === "Enter") {
      e.preventDefault();
      commit();
    } else if (e.key === "Escape") {
      forget();
      e.currentTarget.blur();
    }
  };
  const off = !can("operator");
  const supposed = supposing(run, step, field, now, text);
  const id = `knob-${field.name}`;
  return html`<div class=${"knob" + (error ? " wrong" : "")} onFocusOut=${left} data-test=${"knob-" + field.name}>
    <label for=${id}>${field.text}</label>
    <div class="knob-row">
      ${!off && nudges(field, now, step).map(([label, to, title]) => html`<button type="button" class="btn small" key=${label}
          disabled=${busy || to === null} title=${title}
          aria-label=${`${label} ${field.text}: ${title}`}
        onClick=${() => send(String(to))}
            data-test=${`${field.name}-${label === "½" || label === "−" ? "less" : "more"}`}>${label}</button>`)}
      <input id=${id} name=${field.name} value=${text} disabled=${off} aria-busy=${String(busy)}
          placeholder=${field.placeholder ?? field.zero ?? ""} autocomplete="off"
          inputmode=${field.auto || field.free ? "text" : "decimal"}
        aria-describedby=${id + "-now"} aria-invalid=${error ? "true" : undefined}
        onFocus=${begin} onInput=${typed} onBlur=${() => slide === 0 && (error ? forget() : commit())} onKeyDown=${keys}
            data-test=${"set-" + field.name} />
      <span class="knob-unit muted"
          id=${id + "-now"}>${field.auto && step.settings[field.name + "_auto"] ? `up to ${num(step.settings[field.name])}` : field.unit}</span>
      ${field.auto && !off && html`<button type="button" class="btn small ghost knob-auto" disabled=${busy}
          aria-pressed=${String(now === "auto")} title="Nodes find it"
        onClick=${() => send(now === "auto" ? String(step.settings[field.name]) : "auto")}
            data-test=${`${field.name}-auto`}>auto</button>`}
    </div>
    ${field.slides && !off && run.state === "running" && html`<div class="knob-row">
      <input type="range" min="-24" max="24" value=${slide} onInput=${slid} onKeyDown=${keys} disabled=${busy}
          aria-label=${`Suppose another ${field.text}`} aria-valuetext=${text || field.zero} data-test=${"slide-" + field.name} />
      ${slide !== 0 && html`<button type="button" class="btn small" disabled=${busy} onMouseDown=${(e) => e.preventDefault()}
          onClick=${commit} data-test=${"slid-" + field.name}>Set ${text}</button>`}</div>`}
    ${editing && !off && supposed !== null && html`<${Supposed} run=${run} change=${supposed} />`}
    ${error && html`<p class="field-error" role="alert"><bdi>${inert(error, 300)}</bdi></p>`}
  </div>`;
}

/** supposing is the change to forecast while a number is typed into a field; null: none. */
export function supposing(run, step, field, now, text) {
  const { value } = field.free ? {} : parse(field, text);
  if (run.state !== "running" || typeof value !== "number" || text.trim() === now) return null;
  return `${step ? `${step.name}.` : ""}${field.name}=${value}`;
}

/** slidTo is the text of a field whose slider is at -24 to 24: up to an eighth or eight times of what it has now. */
export function slidTo(field, now, at, step, run) {
  if (field.by) return String(Number(now) + at);
  const has = Number(now) || (field.name === "rate" ? run.rate : step.slices_in_flight) || 8;
  const to = Math.min(field.most, Math.max(field.least, has * 2 ** (at / 8)));
  return String(field.name === "rate" ? Number(to.toPrecision(3)) : Math.max(1, Math.round(to)));
}

function nudges(field, now, step) {
  if (field.free) return [];
  const number = Number(now === "auto" || now === "" ? (step?.settings[field.name] ?? 0) : now);
  const clip = (n) => Math.min(field.most, Math.max(field.least, n));
  if (field.by) return [["−", number - 1, "one less"], ["+", number + 1, "one more"]];
  if (!number) return [["½", null, "half"], ["×2", null, "double"]];
  const half = clip(field.name === "rate" ? number / 2 : Math.max(1, Math.floor(number / 2)));
  return [["½", half, "half"], ["×2", clip(number * 2), "double"]];
}

function say(field, step, several, before, after, undo) {
  const where = step && several ? `${step.name}: ` : "";
  const text = (v) => (v === "" || v === "0" ? (field.zero ?? "none") : v);
  toast(`${where}${field.text.toLowerCase()}: ${text(before)} → ${text(after)}`, undo ? { action: "Undo", onAction: undo } : {});
}

