import { html, cloneElement, useId, useRef, useEffect } from "../html.js";
import { Icon } from "./icons.js";
import { inert } from "../format.js";

// Field labels one input, select or textarea, with a hint and an error.
export function Field({ label, hint, error, children, class: extra = "", test }) {
  const id = useId();
  const input = Array.isArray(children) ? children.find((c) => c && c.type) : children;
  const about = [hint && id + "-hint", error && id + "-error"].filter(Boolean).join(" ") || undefined;
  return html`<div class=${"field " + (error ? "wrong " : "") + extra} data-test=${test}>
    <label for=${id}>${label}</label>
    ${cloneElement(input, { id, "aria-describedby": about, "aria-invalid": error ? "true" : undefined })}
    ${error && html`<p class="field-error" id=${id + "-error"} role="alert"><bdi>${inert(error, 500)}</bdi></p>`}
    ${hint && html`<p class="field-hint" id=${id + "-hint"}>${hint}</p>`}
  </div>`;
}

// Select: options are strings, or [value, label]. Extra properties (id, aria-…) go to the element.
export function Select({ value, onChange, options, label, test, ...rest }) {
  return html`<span class="select"><select value=${value} aria-label=${label} data-test=${test}
      onChange=${(e) => onChange(e.currentTarget.value)} ...${rest}>${options.map((o) => {
    const [v, text] = Array.isArray(o) ? o : [o, o];
    return html`<option key=${v} value=${v} selected=${v === value}>${inert(text, 80)}</option>`;
  })}</select><${Icon} name="down" size=${12}/></span>`;
}

export function Check({ checked, onChange, children, test, disabled }) {
  return html`<label class="check"><input type="checkbox" checked=${checked} disabled=${disabled} data-test=${test}
    onChange=${(e) => onChange(e.currentTarget.checked)}/><span>${children}</span></label>`;
}

// Search is the field that "/" focuses. It reports what is typed after a short rest.
export function Search({ value, onChange, label = "Search", placeholder = "Search", test = "search", rest = 200 }) {
  const timer = useRef(0);
  const input = useRef(null);
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => { // a change from elsewhere, such as Back
    if (document.activeElement !== input.current) input.current.value = value || "";
  }, [value]);
  const typed = (e) => {
    const text = e.currentTarget.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(text.trim()), rest);
  };
  const now = (e) => {
    if (e.key !== "Enter") return;
    clearTimeout(timer.current);
    onChange(e.currentTarget.value.trim());
  };
  return html`<div class="search" role="search"><${Icon} name="search"/>
    <input ref=${input} type="search" aria-label=${label} placeholder=${placeholder} data-search data-test=${test}
      autocomplete="off" spellcheck=${false} onInput=${typed} onKeyDown=${now}/><kbd aria-hidden="true">/</kbd></div>`;
}
