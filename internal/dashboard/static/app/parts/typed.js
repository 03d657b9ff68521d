// A filter field: what is typed applies after a short rest, or on Enter.

import { html, useEffect, useRef } from "../html.js";

/** Typed reports what is typed. With search it is the field that "/" focuses. */
export function Typed({ value = "", onChange, label, placeholder, search = false, test, rest = 350 }) {
  const input = useRef(null);
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => {
    if (document.activeElement !== input.current) input.current.value = value;
  }, [value]);
  const report = (e, pause) => {
    const text = e.currentTarget.value.trim();
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(text), pause);
  };
  return html`<input ref=${input} class="typed" type="search" aria-label=${label} placeholder=${placeholder} data-test=${test}
    data-search=${search || undefined} autocomplete="off" spellcheck=${false} maxlength="200"
    onInput=${(e) => report(e, rest)} onKeyDown=${(e) => e.key === "Enter" && report(e, 0)} />`;
}
